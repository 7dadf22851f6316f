"""An agent as a child of the command that needs it, for its time and at a place of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from miles_periodic.cli import messages
from miles_periodic.cli.pbox.target import needing_the_extra

#: Where the next `miles pbox up` or rehearsal finds and sweeps what a killed one left.
PLACES = Path("/run/pbox")
STOP_SECONDS = 20.0
_MAIN = "from miles_periodic.cli.main import main; main()"


@contextlib.contextmanager
def own_place(place: Path) -> Iterator[None]:
    """A folder that only we can read; afterwards without the files of an agent, gone if empty."""
    with needing_the_extra():
        from miles_periodic.plugins.pbox.node.place import group_of, remove_files
    place.mkdir(parents=True, mode=0o700, exist_ok=True)
    try:
        yield
    finally:
        remove_files(place / "state", group_of(place))
        with contextlib.suppress(OSError):  # it holds more, or the agent's undertaker removed it
            place.rmdir()


@contextlib.contextmanager
def child_agent(
    place: Path, options: list[str], *, listen: str = "", errors: IO[bytes] | None = None
) -> Iterator[str]:
    """The address of an agent that ends with the block, or when this process does, however that
    ends; empty where it did not start.

    listen: where, instead of at the socket of the place. errors: for what the agent has to say;
    none for standard error.
    """
    with needing_the_extra():
        from miles_periodic.plugins.pbox.node.place import group_of
    process = subprocess.Popen(
        [sys.executable, "-c", _MAIN, "pbox", "agent", "--listen", listen or f"unix:{place}/socket",
         "--token-file", f"{place}/tokens", "--state-dir", f"{place}/state",
         "--cgroup", group_of(place), "--stop-with-stdin", *options],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
        start_new_session=True,  # signals for this command reach it through us
    )  # fmt: skip
    try:
        said = process.stdout.readline()
        yield said.split()[-1] if said.startswith("listening at ") else ""
    finally:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        messages.warning("the agent took too long to stop and was killed; its sandboxes go")
        process.kill()
        process.wait()
    process.stdin.close()
    process.stdout.close()
