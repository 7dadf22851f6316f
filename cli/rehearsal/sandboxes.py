"""The sandboxes that a rehearsal's tools run in: an agent for its time, or why there is none."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from miles_periodic.cli.pbox.child_agent import PLACES, child_agent, own_place
from miles_periodic.cli.pbox.target import needing_the_extra
from miles_periodic.hooks.errors import PeriodicError

TOOLS = "miles_periodic.plugins.pbox.rollout.tools.execute"
IMAGE = "base"
#: One sample is in flight at a time: one sandbox for it, and one for the next.
NUM_WARM = 2
#: A job's sandboxes are gone within a second of its end; a busy machine is given longer.
GONE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Count:
    """Of one run: sandboxes that its rollouts took, and those that lived on after its end."""

    started: int
    left: int


@dataclass(slots=True)
class Sandboxes:
    """reason: why tools run in the rollouts' own process; empty where they run in sandboxes.

    problem: what became of an agent that should have run. environment: what leads a run to it.
    left: what was still there after its end.
    """

    reason: str = ""
    remedy: str = ""
    problem: str = ""
    platform: str = ""
    version: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    _started_before: int = 0

    @property
    def tools(self) -> str:
        """The path of the function that runs a tool; empty for the rollout's own process."""
        return "" if self.reason else TOOLS

    def count(self) -> Count | None:
        """What the run that just ended had; None where no agent answers."""
        if not self.tools:
            return None
        counts = _counts_of(self.environment["PBOX_ADDRESS"])
        if counts is None:
            self.problem = "The agent ended before the run did."
            return None
        started = counts["pbox_created_total"] - self._started_before
        self._started_before = counts["pbox_created_total"]
        return Count(started, counts["pbox_sandboxes"] - counts["pbox_warm"])

    def to_json(self) -> dict[str, Any]:
        """For the result."""
        names = ("reason", "remedy", "problem", "platform", "version", "left")
        return {name: getattr(self, name) for name in names}


@contextmanager
def sandboxes(image_dir: Path | None, log: Path) -> Iterator[Sandboxes]:
    """An agent of the rehearsal's own where this machine can have one; ended with the block.

    image_dir: where images lie; the image is built where it is missing. None: no sandboxes are
    wanted. log: of the agent.
    """
    held, place = Sandboxes(), PLACES / f"rehearsal-{os.getpid()}"
    try:
        _refuse_what_is_missing(image_dir is not None)
        _prepare(held, place, image_dir)
    except PeriodicError as error:
        held.reason, held.remedy = error.problem, error.parts["remedy"]
    except OSError as error:
        held.reason = f"Sandboxes cannot be prepared: {error}."
        held.remedy = f"Make {image_dir} and {PLACES} writable, or give another --image-dir."
    if held.reason:
        yield held
        return
    with _agent(place, held, image_dir, log):
        yield held
    held.left = _left_at(place)


def _refuse_what_is_missing(wanted: bool) -> None:
    if not wanted:
        raise PeriodicError("Sandboxes were switched off.", remedy="Leave out --no-sandboxes.")
    if os.geteuid() != 0:
        raise PeriodicError(
            "Sandboxes need root, for mounts and control groups.",
            remedy="Rehearse as root to have them.",
        )
    if not shutil.which("runsc"):
        raise PeriodicError(
            "gVisor's runsc is not installed.",
            remedy="Install gVisor; on Debian and Ubuntu, apt-get install runsc.",
        )


def _prepare(held: Sandboxes, place: Path, image_dir: Path) -> None:
    """Find out what an agent can have here, and that its image is there. Raises PeriodicError."""
    with needing_the_extra():
        from miles_periodic.plugins.pbox.images.store import ImageStore
        from miles_periodic.plugins.pbox.node.place import group_of
        from miles_periodic.plugins.pbox.node.sweep import sweep_abandoned
    _try_rights(group_of(place))
    held.platform = "systrap" if "systrap" in _said("runsc", "flags") else "ptrace"
    held.version = _said("runsc", "--version").partition("\n")[0].removeprefix("runsc version ")
    sweep_abandoned(PLACES, "runsc", held.platform)
    store = ImageStore(image_dir)
    if not any(IMAGE in image.names for image in store.all()):
        store.build(IMAGE)
    place.mkdir(parents=True, mode=0o700, exist_ok=True)


def _try_rights(group: str) -> None:
    """Mount something and make a group: root in a container may often do neither."""
    from miles_periodic.plugins.pbox.node import cgroups
    from miles_periodic.plugins.pbox.node.system_calls import mount, unmount

    groups = cgroups.find(group)
    try:
        with tempfile.TemporaryDirectory(prefix="mp-") as folder:
            mount("tmpfs", folder, "size=4k")
            unmount(folder)
        groups.prepare("", None)
        groups.remove()
    except OSError as error:
        raise PeriodicError(
            f"This container may not mount, or make control groups: {error}.",
            remedy="Rehearse outside of it, or in a privileged one.",
        ) from error


def _said(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@contextmanager
def _agent(place: Path, held: Sandboxes, image_dir: Path, log: Path) -> Iterator[None]:
    options = ["--image", IMAGE, "--image-dir", str(image_dir), "--platform", held.platform]
    options += ["--warm", f"{IMAGE}={NUM_WARM}"]
    with (
        own_place(place),
        log.open("wb") as errors,
        child_agent(place, options, errors=errors) as address,
    ):
        if address:
            held.environment = {"PBOX_ADDRESS": address, "PBOX_TOKEN_FILE": f"{place}/tokens"}
        else:
            held.reason = "The agent did not start."
            held.problem = log.read_text(errors="replace").strip()[-1000:] or held.reason
        yield


def _counts_of(address: str) -> dict[str, int] | None:
    """The agent's counts, once no connection of a run is left or the time for that is up; None
    where it does not answer.
    """
    end = time.monotonic() + GONE_SECONDS
    while True:
        counts = asyncio.run(_read_counts(address))
        if counts is None or not counts["pbox_leases"] or time.monotonic() > end:
            return counts
        time.sleep(0.05)


async def _read_counts(address: str) -> dict[str, int] | None:
    import aiohttp

    session = aiohttp.ClientSession(
        connector=aiohttp.UnixConnector(address.removeprefix("unix:")),
        timeout=aiohttp.ClientTimeout(total=GONE_SECONDS),
    )
    try:
        async with session, session.get("http://pbox/metrics") as response:
            return read_metrics(await response.text())
    except (aiohttp.ClientError, asyncio.TimeoutError):
        return None


def read_metrics(text: str) -> dict[str, int]:
    """Prometheus's lines as numbers by name, summed over labels."""
    counts: dict[str, int] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0]
            counts[name] = counts.get(name, 0) + int(float(value))
    return counts


def _left_at(place: Path) -> list[str]:
    """What is there of the agent and its sandboxes, once nothing is or the time is up."""
    end = time.monotonic() + GONE_SECONDS
    while (left := left_at(place)) and time.monotonic() < end:
        time.sleep(0.05)
    if not left:
        with suppress(OSError):  # it is gone, or somebody put something into it
            place.rmdir()
    return left


def left_at(place: Path, mounts: str | None = None) -> list[str]:
    """Groups, mounts and files of the sandboxes below a place, each as a phrase."""
    from miles_periodic.plugins.pbox.node import cgroups
    from miles_periodic.plugins.pbox.node.place import group_of

    table = Path("/proc/self/mountinfo").read_text() if mounts is None else mounts
    found: Mapping[str, int] = {
        "control groups": len(cgroups.find(group_of(place)).existing()),
        "mounts": sum(f" {place}/state/" in line for line in table.splitlines()),
        "folders": len(list(place.glob("state/sandboxes/*"))),
        "notes of runsc": len(list(place.glob("state/runsc/*"))),
    }
    return [f"{number} {what}" for what, number in found.items() if number]
