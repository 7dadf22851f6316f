"""The nodes of one job: each puts its agent's address where the others see it, and reads theirs."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from miles_periodic.hooks.errors import PeriodicError

MEET_SECONDS = 300.0
LEAVE_SECONDS = 10.0
LOOK_SECONDS = 0.2
_NEEDED = ("SLURM_JOB_ID", "SLURM_NNODES", "SLURM_NODEID")


@dataclass(frozen=True, slots=True)
class Meeting:
    """folder: seen by all nodes. node: this one's number, from 0."""

    folder: Path
    node: int
    num_nodes: int
    meet_seconds: float = MEET_SECONDS

    def token(self) -> str:
        """The token of the job on all of its nodes; the first node makes it."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.node == 0:
            self._put("token", secrets.token_urlsafe(32))
        return self._wait_for("token")

    def addresses(self, mine: str) -> list[str]:
        """The addresses of all agents of the job, this node's first."""
        self._put(f"agent-{self.node}", mine)
        others = [number for number in range(self.num_nodes) if number != self.node]
        found = [mine, *(self._wait_for(f"agent-{number}") for number in others)]
        self._put(f"met-{self.node}", "")
        return found

    def leave(self) -> None:
        """Take away what this node put there, and with the last node the folder.

        A node whose command was short waits for those that have still to read its address.
        """
        if (self.folder / f"met-{self.node}").exists():
            for number in range(self.num_nodes):
                with contextlib.suppress(PeriodicError):  # that node ended before it met
                    self._wait_for(f"met-{number}", LEAVE_SECONDS)
        (self.folder / f"agent-{self.node}").unlink(missing_ok=True)
        if not list(self.folder.glob("agent-*")):
            shutil.rmtree(self.folder, ignore_errors=True)  # another node may be just as late

    def _put(self, name: str, text: str) -> None:
        staged = self.folder / f".{name}.{secrets.token_hex(4)}"
        descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        staged.rename(self.folder / name)

    def _wait_for(self, name: str, seconds: float | None = None) -> str:
        deadline = time.monotonic() + (self.meet_seconds if seconds is None else seconds)
        while self.folder.exists() or seconds is None:
            try:
                return (self.folder / name).read_text(encoding="utf-8")
            except FileNotFoundError as error:
                if time.monotonic() > deadline:
                    raise PeriodicError(
                        f"{name} did not come into {self.folder} from its node.",
                        expected=f"`miles pbox up` on each of {self.num_nodes} nodes",
                        remedy="Run it once per node (srun --ntasks-per-node=1), and give --share "
                        "a folder that all nodes see.",
                    ) from error
                time.sleep(LOOK_SECONDS)
        return ""


def meeting_of_this_step(share: Path) -> Meeting:
    """The meeting of this Slurm step below `share`. Raises PeriodicError outside of Slurm."""
    missing = [name for name in _NEEDED if name not in os.environ]
    if missing:
        raise PeriodicError(
            "Several nodes find each other as nodes of a Slurm step, and this is none.",
            found=f"not set: {', '.join(missing)}",
            remedy="Start it with srun, or leave --share away.",
        )
    step = os.environ.get("SLURM_STEP_ID", "0")
    again = os.environ.get("SLURM_RESTART_COUNT", "0")
    folder = share / f"pbox-{os.environ['SLURM_JOB_ID']}-{step}-{again}"
    return Meeting(folder, int(os.environ["SLURM_NODEID"]), int(os.environ["SLURM_NNODES"]))


def own_name() -> str:
    """What other nodes call this one: Slurm's name of it, or the host's."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()
