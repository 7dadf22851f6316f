"""`bench pbox`: what a sandbox costs a rollout, beside what others cost on the same machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from miles_periodic.cli.bench.sandbox_times import (
    OPERATIONS_FILE,
    ROUND_TRIP,
    ROUND_TRIP_OVER_HTTP,
    Times,
    pictures,
)
from miles_periodic.cli.pbox.child_agent import child_agent, own_place
from miles_periodic.cli.pbox.target import DEFAULT_IMAGE_DIR, ImageDir, needing_the_extra
from miles_periodic.cli.whole_file import check_writable, write_whole
from miles_periodic.hooks.errors import PeriodicError

if TYPE_CHECKING:
    from miles_periodic.plugins.pbox.client.box import Box
    from miles_periodic.plugins.pbox.client.host import Host

MIB = 1 << 20
ECHO = ("echo", "hi")


def pbox_command(
    sandboxes: Annotated[
        str, typer.Option(metavar="N,N", help="How many sandboxes there are at once.")
    ] = "1,10,100",
    repeats: Annotated[int, typer.Option(min=5, help="Of each measurement.")] = 20,
    platform: Annotated[str, typer.Option(metavar="NAME", help="gVisor's platform.")] = "systrap",
    cycles: Annotated[
        int, typer.Option(metavar="N", help="Also start and destroy so many, and count the rest.")
    ] = 0,
    plots: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also draw every measurement, as SVG files in here."),
    ] = None,
    image_dir: ImageDir = DEFAULT_IMAGE_DIR,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time sandboxes under an agent of their own, beside bwrap, a plain process, and runsc exec.

    Needs root and runsc; builds the image `base` where it is missing. Milliseconds. Exits with 1
    where cycles left something behind.
    """
    if plots is not None:
        check_writable(plots / OPERATIONS_FILE, "--plots")
    from miles_periodic.cli.bench.table import show

    with needing_the_extra():
        from miles_periodic.plugins.pbox.images.store import ImageStore
    store = ImageStore(image_dir)
    if not any("base" in image.names for image in store.all()):
        store.build("base")
    numbers = [int(number) for number in sandboxes.split(",")]
    times, facts = asyncio.run(_measure(numbers, repeats, platform, image_dir, cycles))
    result = {"rows": times.rows(), **facts}
    show("What a sandbox costs", result, json_output)
    for name, picture in pictures(times, numbers).items() if plots is not None else ():
        write_whole(plots / name, picture, "--plots")
    if result.get("left_behind"):
        raise typer.Exit(1)


async def _measure(
    numbers: list[int], repeats: int, platform: str, image_dir: Path, cycles: int
) -> tuple[Times, dict[str, Any]]:
    times, facts = Times(), {"load_before": os.getloadavg()[0], "cpus": os.cpu_count()}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        async with _agent(Path(folder), platform, image_dir, "--warm", "base=3") as host:
            await _latencies(host, times, repeats)
            await _rivals(host, Path(folder), times, repeats)
        async with _agent(Path(folder), platform, image_dir) as host:
            await _cold(host, times, repeats)
            for number in numbers:
                facts |= await _crowd(host, times, number, repeats)
            if cycles:
                facts |= await _come_and_go(host, Path(folder), cycles)
        for _ in range(3):
            times.note("all of a killed job's 4 sandboxes gone", await _killed_job(
                Path(folder), platform, image_dir))  # fmt: skip
    return times, {**facts, "load_after": os.getloadavg()[0]}


@contextlib.asynccontextmanager
async def _agent(
    folder: Path, platform: str, image_dir: Path, *options: str
) -> AsyncIterator[Host]:
    from miles_periodic.plugins.pbox.client.host import connect

    with _listening(folder, platform, image_dir, *options) as address:
        async with connect(address, token_file=folder / "tokens", timeout_seconds=60) as host:
            yield host


@contextlib.contextmanager
def _listening(folder: Path, platform: str, image_dir: Path, *options: str) -> Iterator[str]:
    """The address of an agent. Raises PeriodicError where it does not start."""
    words, log = ["--image-dir", str(image_dir), "--platform", platform, *options], folder / "log"
    with (
        own_place(folder),
        log.open("wb") as errors,
        child_agent(folder, words, errors=errors) as address,
    ):
        if not address:
            raise PeriodicError(
                "The agent did not start.",
                found=log.read_text(errors="replace").strip()[-1000:],
                remedy="Do what it says; `miles pbox agent` has the same options.",
            )
        yield address


async def _latencies(host: Host, times: Times, repeats: int) -> None:
    """One sandbox after another out of a pool that is full each time."""
    for _ in range(repeats):
        await _until(lambda: _is_warm(host, 3))
        started = time.perf_counter()
        box = await times.take("claim", host.start())
        await times.take("first command", box.exec(ECHO))
        times.note("claim + first command", time.perf_counter() - started)
        await asyncio.sleep(0.2)
        await times.take("command", box.exec(ECHO))
        await times.take("python command", box.exec(["python3", "-c", "1"]))
        await times.take("destroy", box.close())


async def _is_warm(host: Host, number: int) -> bool:
    return (await host.node())["warm"]["base"] >= number


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    while not await holds():
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.1)


async def _cold(host: Host, times: Times, repeats: int) -> None:
    for _ in range(repeats):
        started = time.perf_counter()
        box = await times.take("start without a pool", host.start())
        await box.exec(ECHO)
        times.note("start without a pool + first command", time.perf_counter() - started)
        await box.close()


async def _crowd(host: Host, times: Times, number: int, repeats: int) -> dict[str, float]:
    """Files and commands where `number` sandboxes live: one client, then one client each."""
    boxes = await asyncio.gather(*(host.start() for _ in range(number)))
    data = os.urandom(MIB)
    for turn in range(repeats):
        box = boxes[turn % number]
        await times.take(f"{ROUND_TRIP}, of {number}", _there_and_back(box, data))
        over_http = _there_and_back(box.over_http(), data)
        await times.take(f"{ROUND_TRIP_OVER_HTTP}, of {number}", over_http)
        await times.take(f"command, of {number}", box.exec(ECHO))
    transfer_seconds = await _together(_there_and_back(x, data) for x in boxes for _ in range(3))
    http_seconds = await _together(
        _there_and_back(box.over_http(), data) for box in boxes for _ in range(3)
    )
    command_seconds = await _together(box.exec(ECHO) for box in boxes)
    await asyncio.gather(*(box.close() for box in boxes))
    return {
        f"MiB_per_second_of_{number}_clients": 6 * number / transfer_seconds,
        f"MiB_per_second_of_{number}_clients_over_HTTP": 6 * number / http_seconds,
        f"commands_per_second_of_{number}_clients": number / command_seconds,
    }


async def _together(works: Iterable[Awaitable[Any]]) -> float:
    started = time.perf_counter()
    await asyncio.gather(*works)
    return time.perf_counter() - started


async def _come_and_go(host: Host, folder: Path, cycles: int) -> dict[str, Any]:
    """Start and destroy sandboxes, four at a time; what is there afterwards that was not before."""
    before, places = _held(folder), asyncio.Semaphore(4)

    async def one() -> None:
        async with places, host.sandbox() as box:
            await box.exec(ECHO)

    started = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(cycles)))
    seconds = time.perf_counter() - started
    left = {name: number - before[name] for name, number in _held(folder).items()}
    return {
        "cycles": cycles,
        "cycles_per_second": cycles / seconds,
        "left_behind": {name: number for name, number in left.items() if number > 0},
    }


def _held(folder: Path) -> dict[str, int]:
    """Mounts, control groups, folders and runsc's notes of the agent's sandboxes."""
    from miles_periodic.plugins.pbox.node.place import group_of

    group = group_of(folder)
    parents = [*Path("/sys/fs/cgroup").glob(group), *Path("/sys/fs/cgroup").glob(f"*/{group}")]
    return {
        "mounts": Path("/proc/self/mountinfo").read_text().count(f"{folder}/state"),
        "groups": sum(path.is_dir() for parent in parents for path in parent.iterdir()),
        "folders": len(list((folder / "state/sandboxes").iterdir())),
        "notes": len(list((folder / "state/runsc").iterdir())),
    }


async def _there_and_back(box: Box, data: bytes) -> None:
    await box.write_bytes("data", data)
    if await box.read_bytes("data") != data:
        raise RuntimeError("a file came back changed")


async def _rivals(host: Host, folder: Path, times: Times, repeats: int) -> None:
    """The same on the same machine: a process, bubblewrap, and runsc's own way in."""
    box, data = await host.start(), os.urandom(MIB)
    inside = ("runsc", "--root", f"{folder}/state/runsc", "exec", box.name)
    bubble = ("bwrap", "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", *ECHO)
    for _ in range(repeats):
        await times.take("a plain process", _run(ECHO))
        await times.take("bwrap", _run(bubble))
        await times.take("runsc exec", _run((*inside, *ECHO)))
        started = time.perf_counter()
        await _run((*inside, "sh", "-c", "cat > /work/x"), data)
        await _run((*inside, "cat", "/work/x"))
        times.note("1 MiB up and down by runsc exec", time.perf_counter() - started)
    await box.close()


async def _run(words: tuple[str, ...], data: bytes = b"") -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=pipe)
    _, error = await process.communicate(data)
    if process.returncode:
        raise RuntimeError(f"{words[0]} ended with {process.returncode}: {error.decode()[:200]}")


_JOB = """
import sys, time
from miles_periodic.plugins.pbox.client.blocking import connect_blocking
with connect_blocking(sys.argv[1], token_file=sys.argv[2], timeout_seconds=60) as host:
    boxes = [host.start() for _ in range(4)]
    print("ready", flush=True)
    time.sleep(600)
"""


async def _killed_job(folder: Path, platform: str, image_dir: Path) -> float:
    """Seconds from the SIGKILL of a job until no group and no mount of it is left."""
    with _listening(folder, platform, image_dir) as address:
        job = subprocess.Popen(
            [sys.executable, "-c", _JOB, address, f"{folder}/tokens"], stdout=subprocess.PIPE
        )
        try:
            job.stdout.readline()
            started = time.perf_counter()
            job.kill()
            while any((folder / "state/sandboxes").iterdir()):
                await asyncio.sleep(0.001)
            return time.perf_counter() - started
        finally:
            job.kill()
            job.wait()
            job.stdout.close()
