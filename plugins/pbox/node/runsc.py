"""Starting `runsc run` in the foreground, through `sh`, inside a sandbox's control group."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import sh

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.node.cgroups import Cgroup

#: What runsc itself gets of our environment; the guest's is in its bundle.
_HOST_VARIABLES = ("PATH", "HOME", "TMPDIR", "LANG")


class Runsc:
    """The program, its platform, and the folder in which it keeps its state."""

    def __init__(self, program: str, platform: str, state: Path) -> None:
        self.program = program
        self.platform = platform
        self.state = state
        try:
            self._command = sh.Command(program)
        except sh.CommandNotFound as error:
            raise PeriodicError(
                f"There is no {program!r} to run sandboxes with.",
                remedy="Install gVisor's runsc (Debian: apt-get install runsc), or give its path "
                "with --runsc.",
            ) from error

    def version(self) -> str:
        """The first line of what `runsc --version` says."""
        said = self._command("--version", _tty_out=False, _env=_environment(), _return_cmd=True)
        return said.stdout.decode(errors="replace").splitlines()[0]

    def run(
        self,
        name: str,
        home: Path,
        cgroup: Cgroup,
        stdin: int,
        stdout: int,
    ) -> sh.RunningCommand:
        """Start a sandbox on the bundle in `home`; its process 1 talks on the two descriptors."""
        entrances = [str(path) for path in cgroup.entrances()]
        # A file of its own: the log of one sandbox must not hold up another, nor fill a disk.
        with (home / "runsc.log").open("wb") as log:
            return self._command(
                "--root", str(self.state), "--platform", self.platform, "--network", "none",
                "--ignore-cgroups", "--file-access", "exclusive",
                "run", "--bundle", str(home), name,
                _bg=True, _bg_exc=False, _return_cmd=True, _env=_environment(),
                _in=os.fdopen(stdin, "rb", closefd=False),
                _out=os.fdopen(stdout, "wb", closefd=False),
                _err=log, _tty_in=False, _tty_out=False, _new_session=True,
                _preexec_fn=lambda: _enter(entrances),
            )  # fmt: skip

    def forget(self, name: str) -> None:
        """Remove what runsc noted of a sandbox that was killed."""
        for note in self.state.glob(f"{name}*"):
            note.unlink(missing_ok=True)


async def wait(running: sh.RunningCommand) -> None:
    """Wait until a started runsc has ended and was reaped; `sh` itself looks once a second."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    try:
        descriptor = os.pidfd_open(running.pid)
    except ProcessLookupError:
        return  # `sh` was here first
    try:
        loop.add_reader(descriptor, ended.set)
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    while running.is_alive():
        await asyncio.sleep(0.001)


def _environment() -> dict[str, str]:
    return {name: os.environ[name] for name in _HOST_VARIABLES if name in os.environ}


def _enter(entrances: list[str]) -> None:
    """In the child, before it becomes runsc: enter the groups, and go first where memory ends."""
    for entrance in entrances:
        _write(entrance, b"0")
    _write("/proc/self/oom_score_adj", b"900")


def _write(path: str, text: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text)
    finally:
        os.close(descriptor)
