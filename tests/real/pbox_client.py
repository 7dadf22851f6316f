"""A job's process: connects, starts sandboxes with something running in each, then waits."""

import sys
import time

from pbox_agent import RunningCommand

from miles_periodic.plugins.pbox.client.blocking import connect_blocking


def main(address, token_file, num_sandboxes):
    with connect_blocking(address, token_file=token_file) as host:
        boxes = [host.start() for _ in range(int(num_sandboxes))]
        for box in boxes:
            RunningCommand(box, ["sh", "-c", "echo up; sleep 600 & sleep 600"], timeout_seconds=600)
        print("ready", flush=True)
        time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
