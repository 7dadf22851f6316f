"""A real agent with real gVisor, and what it may not leave behind."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from miles_periodic.plugins.pbox.agent.tokens import read_token
from miles_periodic.plugins.pbox.client.blocking import connect_blocking
from miles_periodic.plugins.pbox.node.cgroups import find

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / ".cache/pbox/images"
MAIN = "from miles_periodic.cli.main import main; main()"
#: For what has nothing to do with limits, whose proofs take most of an agent's start.
UNPROVED = """
from miles_periodic.plugins.pbox.agent import agent

async def prove_nothing(*_):
    return []

agent.prove = prove_nothing
"""
#: An agent ends with its test, also where that is killed.
PYTHON = ["setpriv", "--pdeathsig", "TERM", sys.executable, "-c"]
READY_SECONDS = 180
#: The one platform that works wherever ptrace does, also in a virtual machine.
PLATFORM = "ptrace"


@dataclass(frozen=True)
class RunningAgent:
    """An agent of its own folder and control group."""

    process: subprocess.Popen
    folder: Path
    address: str

    @property
    def token_file(self):
        return self.folder / "tokens"

    @property
    def state(self):
        return self.folder / "state"

    @property
    def group(self):
        return group_of(self.folder)

    def token(self):
        return read_token(self.token_file)

    def connect(self, **options):
        return connect_blocking(self.address, token_file=self.token_file, **options)

    def log(self):
        return (self.folder / "log").read_text()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)


def group_of(folder):
    return f"pbox-test-{os.getpid()}-{folder.name}"


def agent_command(folder, *options, listen="", is_proved=True):
    return [
        *PYTHON, MAIN if is_proved else UNPROVED + MAIN,
        "pbox", "agent", "--listen", listen or f"unix:{folder}/socket",
        "--token-file", f"{folder}/tokens", "--state-dir", f"{folder}/state",
        "--image-dir", str(IMAGES), "--cgroup", group_of(folder), "--platform", PLATFORM,
        *options,
    ]  # fmt: skip


@contextlib.contextmanager
def agent(folder, *options, listen="", is_proved=True):
    """Start an agent and wait until it listens; afterwards nothing of it is left."""
    folder.mkdir(exist_ok=True)
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            agent_command(folder, *options, listen=listen, is_proved=is_proved),
            stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
        )  # fmt: skip
    try:
        readable, _, _ = select.select([process.stdout], [], [], READY_SECONDS)
        line = process.stdout.readline() if readable else ""
        assert line.startswith("listening at"), (folder / "log").read_text()
        yield RunningAgent(process, folder, line.split()[-1])
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        process.stdout.close()
        nothing_is_left(folder, seconds=60)


def left_behind(folder):
    """Processes, mounts, control groups and files of an agent's sandboxes that are there now."""
    groups = find(group_of(folder))
    mounts = Path("/proc/self/mountinfo").read_text()
    homes = folder / "state/sandboxes"
    return {
        "groups": sorted(groups.existing()),
        "processes": [pid for group in groups.existing().values() for pid in group.pids()],
        "mounts": [line for line in mounts.splitlines() if f"{folder}/state" in line],
        "files": [path.name for path in homes.iterdir()] if homes.is_dir() else [],
        "notes": [path.name for path in folder.glob("state/runsc/*")],
    }


def nothing_is_left(folder, seconds):
    """Wait until nothing is left; fail with what is. How long it took, in seconds."""
    started = time.monotonic()
    while any(left_behind(folder).values()):
        assert time.monotonic() - started < seconds, left_behind(folder)
        time.sleep(0.01)
    return time.monotonic() - started


class RunningCommand(threading.Thread):
    """A command that runs meanwhile, from when it has written something.

    end: once the thread is joined, its result, or the error that it came to.
    """

    def __init__(self, box, words, **options):
        super().__init__(daemon=True)
        self.end = None
        self._call = lambda: box.exec(words, on_output=self._wrote, **options)
        self._has_written = threading.Event()
        self.start()
        assert self._has_written.wait(READY_SECONDS), self.end

    def _wrote(self, stream, piece):
        self._has_written.set()

    def run(self):
        try:
            self.end = self._call()
        except Exception as error:
            self.end = error
        finally:
            self._has_written.set()
