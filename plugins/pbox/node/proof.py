"""Proves before the first job that every limit holds, by running into each in a real sandbox.

A limit that is written but not enforced is worse than none: control groups that a container
shadows, a runtime that passes them over, a mount without its size. Each was seen in the field.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.cpu_lists import parse_cpus
from miles_periodic.plugins.pbox.limits import MIB, Limits
from miles_periodic.plugins.pbox.node.sandbox import CommandOrder, Image, Node, Sandbox
from miles_periodic.plugins.pbox.node.start import start
from miles_periodic.plugins.pbox.outcomes import Killed, OutOfMemory

#: Small enough to be reached in a second, on a machine that does other work too.
LIMITS = Limits(
    memory_bytes=512 * MIB,
    num_processes=128,
    num_cpus=1.0,
    disk_bytes=4 * MIB,
    num_files=500,
    scratch_bytes=2 * MIB,
)
LITTLE_MEMORY = LIMITS.model_copy(update={"memory_bytes": 96 * MIB})
#: Little enough to be held back also where other work leaves a sandbox a twentieth of a CPU.
LITTLE_CPU = LIMITS.model_copy(update={"num_cpus": 0.02})
MOST_CPU = 0.1
#: What the kernel may note above a limit for a moment, as it charges pages in batches.
_CHARGE_BYTES = 4 * MIB
BURN_SECONDS = 0.5
#: A node so busy that a sandbox gets less than its little share has proved nothing yet: again.
NUM_BURNS = 60
#: Of what ends by its limits. On a node that does other work it takes many times as long.
TIMEOUT_SECONDS = 120.0

_FILL_MEMORY = "held = []\nwhile True: held.append(bytearray(b'x' * (1 << 20)))"
_FORK = "import os\nwhile True: os.fork()"
_BURN = "while True: pass"
_FILES = """
import errno, os, sys
def written(path):
    total = 0
    try:
        with open(path, "wb", buffering=0) as file:
            while total < 64 << 20: total += file.write(b"x" * 65536)
    except OSError as error:
        return [total, errno.errorcode[error.errno]]
    return [total, ""]
def made(folder):
    os.mkdir(folder)
    for number in range(100000):
        try: open("%s/%d" % (folder, number), "wb").close()
        except OSError as error: return [number, errno.errorcode[error.errno]]
    return [100000, ""]
found = {}
for name in ("/work", "/tmp", "/dev/shm"):
    found[name] = written(name + "/fill")
    os.unlink(name + "/fill")
found["inodes"] = made("/work/many")
import socket
found["interfaces"] = [name for _, name in socket.if_nameindex()]
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=2).close()
    found["host"] = "connected"
except OSError as error:
    found["host"] = "refused"
import json
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Proof:
    """One limit: what was to happen, what did, and whether they agree."""

    limit: str
    expected: str
    found: str
    holds: bool


async def prove(node: Node, image: Image, cpus: str) -> list[Proof]:
    """Run into every limit, side by side. cpus: the CPUs that sandboxes are confined to, or empty.

    Raises InfrastructureFailure where a sandbox does not even start.
    """
    parts = {_memory: LITTLE_MEMORY, _processes: LIMITS, _cpu: LIMITS, _files: LIMITS}
    found = await asyncio.gather(
        *(_in_a_sandbox(part, node, image, limits, cpus) for part, limits in parts.items())
    )
    return [proof for proofs in found for proof in proofs]


def refuse_unproved(proofs: list[Proof], accepted: frozenset[str] = frozenset()) -> None:
    """Raise PeriodicError naming the limits that do not hold, but for those that were accepted."""
    broken = [p for p in proofs if not p.holds and p.limit not in accepted]
    if broken:
        raise PeriodicError(
            "Limits of sandboxes are not enforced on this machine: "
            + ", ".join(proof.limit for proof in broken) + ".",
            expected="; ".join(proof.expected for proof in broken),
            found="; ".join(proof.found for proof in broken),
            remedy="Give the agent control groups and mounts of its own; or accept the risk by "
            "name: " + " ".join(f"--allow-unenforced {proof.limit}" for proof in broken),
        )  # fmt: skip


async def _in_a_sandbox(
    part: Callable[[Sandbox, str], Awaitable[list[Proof]]],
    node: Node,
    image: Image,
    limits: Limits,
    cpus: str,
) -> list[Proof]:
    sandbox = await start(node, image, limits)
    try:
        return await part(sandbox, cpus)
    finally:
        await sandbox.destroy()


async def _run(sandbox: Sandbox, code: str, *arguments: str, seconds: float = TIMEOUT_SECONDS):
    pieces: list[bytes] = []
    words = (sandbox.image.python, "-I", "-S", "-c", code, *arguments)
    order = CommandOrder(words, timeout_seconds=seconds)
    outcome, _ = await sandbox.execute(order, lambda stream, piece: pieces.append(piece))
    return outcome, b"".join(pieces).decode(errors="replace")


async def _memory(sandbox: Sandbox, cpus: str) -> list[Proof]:
    outcome, _ = await _run(sandbox, _FILL_MEMORY)
    most, limit_bytes = sandbox.usage().most_memory_bytes, LITTLE_MEMORY.memory_bytes
    return [
        Proof(
            "memory",
            f"a command that fills memory ends at {limit_bytes // MIB} MiB",
            f"{outcome}, at most {'an unknown number of' if most is None else most // MIB} MiB",
            isinstance(outcome, OutOfMemory) and (most or 0) <= limit_bytes + _CHARGE_BYTES,
        )
    ]


async def _processes(sandbox: Sandbox, cpus: str) -> list[Proof]:
    outcome, _ = await _run(sandbox, _FORK)
    usage = sandbox.usage()
    return [
        Proof(
            "processes",
            f"a command that forks without end meets the limit of {LIMITS.num_processes}",
            f"{outcome}, {usage.num_refused_forks} forks refused",
            usage.num_refused_forks > 0 and isinstance(outcome, Killed),
        )
    ]


async def _cpu(sandbox: Sandbox, cpus: str) -> list[Proof]:
    burning = asyncio.ensure_future(_run(sandbox, _BURN, seconds=TIMEOUT_SECONDS))
    await asyncio.sleep(BURN_SECONDS / 2)
    sandbox.apply(LITTLE_CPU)  # only now: a command would take seconds to start on so little
    for _ in range(NUM_BURNS):
        used, throttled = await _burnt(sandbox)
        if throttled or used > MOST_CPU:
            break
    allowed = {_allowed_cpus(pid) for pid in sandbox.pids()} - {None}
    sandbox.apply(LIMITS)
    burning.cancel()
    await asyncio.gather(burning, return_exceptions=True)
    proofs = [
        Proof(
            "cpu-time",
            f"a command that never rests is held to {LITTLE_CPU.num_cpus} CPUs",
            f"it used {used:.2f} CPUs and was held back {throttled} times",
            throttled > 0 and used <= MOST_CPU,
        )
    ]
    return proofs + ([_cpu_set(cpus, allowed)] if cpus else [])


def _cpu_set(cpus: str, allowed: set[str | None]) -> Proof:
    outside = sorted(text for text in allowed if text and not parse_cpus(text) <= parse_cpus(cpus))
    return Proof(
        "cpu-set",
        f"every process of a sandbox runs on the CPUs {cpus} only",
        f"some may run on {', '.join(outside)}" if outside else "they do",
        bool(allowed) and not outside,
    )


async def _burnt(sandbox: Sandbox) -> tuple[float, int]:
    """CPUs that a sandbox used in a moment, and how often it was held back."""
    before, started = sandbox.usage(), time.monotonic()
    await asyncio.sleep(BURN_SECONDS)
    after, seconds = sandbox.usage(), time.monotonic() - started
    used = (after.cpu_seconds - before.cpu_seconds) / seconds
    return used, after.num_throttled - before.num_throttled


async def _files(sandbox: Sandbox, cpus: str) -> list[Proof]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        outcome, text = await _run(sandbox, _FILES, port)
    try:
        found = json.loads(text)
    except ValueError:
        found = {"failed": f"{outcome}: {text[-200:]}"}
    bounds = {
        "disk": ("/work", LIMITS.disk_bytes),
        "scratch": ("/tmp", LIMITS.scratch_bytes),
        "shared-memory": ("/dev/shm", LIMITS.scratch_bytes),
        "files": ("inodes", LIMITS.num_files),
    }
    proofs = [
        Proof(
            limit,
            f"{place} is full (ENOSPC) at {most}",
            str(found.get(place, found)),
            place in found and found[place][0] <= most and found[place][1] == "ENOSPC",
        )
        for limit, (place, most) in bounds.items()
    ]
    wanted = {"interfaces": ["lo"], "host": "refused"}
    seen = {name: found.get(name) for name in wanted}
    return [*proofs, Proof("network", f"{wanted}", f"{seen}", seen == wanted)]


def _allowed_cpus(pid: int) -> str | None:
    """The CPUs of a process as the kernel writes them; none of one that is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next(line.split()[1] for line in lines if line.startswith("Cpus_allowed_list:"))
