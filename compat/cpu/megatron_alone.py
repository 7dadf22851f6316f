"""A real, unmodified Megatron-core alone on the CPU: ranks under gloo, facts as JSON.

    python -m miles_periodic.compat.cpu.megatron_alone SCRIPT FOLDER WORLDS WORDS…

with the tree to run first in PYTHONPATH. SCRIPT defines what one rank finds out, `facts(rank: Rank)
-> dict`, and, where it wants bindings put in, `before_import()`, which is called once before
anything of Megatron is imported. Megatron is imported once; from there the ranks of each of WORLDS
(`1,2`) are forked, one world after the other. Rank r of n leaves `FOLDER/n/r.json`, its id
among the facts, or `FOLDER/n/r.error`. The fixture `megatron_ranks` of tests/real starts it;
compat/cpu/megatron_models.py has what to train.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from miles_periodic.compat.cpu import cuda_on_cpu, gloo, pinned_memory
from miles_periodic.compat.cpu.megatron_local_spec import no_transformer_engine_gemm

#: What a rank waits for another one.
COLLECTIVE_SECONDS = 240
#: What the other ranks get to end by themselves after one has failed.
GRACE_SECONDS = 2.0
POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Rank:
    """One process of a world, its process group made and torch.cuda answered by the CPU.

    folder: empty at the start, shared by the world's ranks. words: what the script was given.
    """

    rank: int
    world_size: int
    folder: Path
    words: tuple[str, ...]


Facts = Callable[[Rank], Mapping[str, Any]]


def main(argv: list[str]) -> int:
    """Run a script in every rank of every world; 1 where one of them failed."""
    script, folder, worlds, *words = argv
    stand_in()
    # As where a script is started by its path: its neighbours can be imported.
    sys.path.insert(0, str(Path(script).parent))
    defined = runpy.run_path(script)
    defined.get("before_import", lambda: None)()
    import_megatron()
    sizes = [int(size) for size in worlds.split(",")]
    ok = [_world(defined["facts"], size, Path(folder), tuple(words)) for size in sizes]
    return 0 if all(ok) else 1


def stand_in() -> None:
    """Put the stand-ins into this process; before anything imports Megatron."""
    import torch
    import torch.distributed.distributed_c10d as c10d

    torch.set_num_threads(1)
    pinned_memory.allocate_pageable(torch)
    cuda_on_cpu.cuda_functions_on_cpu(torch)
    gloo.split_sizes_as_lists(c10d)
    # torch.distributed holds the functions of its module by value.
    torch.distributed.all_to_all_single = c10d.all_to_all_single


def import_megatron() -> None:
    """Import what every script trains with, its Adam as with Apex (see fused_adam).

    Raises RuntimeError where Megatron does not come from the first tree of PYTHONPATH.
    """
    from miles_periodic.compat.cpu.fused_adam import as_if_apex_were_there

    core = importlib.import_module("megatron.core")
    tree = os.environ["PYTHONPATH"].split(os.pathsep)[0]
    if not Path(core.__file__).is_relative_to(tree):
        raise RuntimeError(f"megatron.core is {core.__file__}, not that of {tree}")
    no_transformer_engine_gemm(importlib.import_module("megatron.core.transformer.moe.moe_utils"))
    for name in ("models.gpt.gpt_model", "dist_checkpointing"):
        importlib.import_module(f"megatron.core.{name}")
    as_if_apex_were_there(
        importlib.import_module("megatron.core.optimizer"),
        importlib.import_module("megatron.core.optimizer.distrib_optimizer"),
    )


def _world(facts: Facts, world_size: int, folder: Path, words: tuple[str, ...]) -> bool:
    """Fork the ranks of one world and wait for them; whether all of them left facts."""
    own = folder / str(world_size)
    (own / "shared").mkdir(parents=True)
    children = {}
    for number in range(world_size):
        rank = Rank(number, world_size, own / "shared", words)
        pid = os.fork()
        if pid == 0:
            # A normal end: Megatron's checkpoint code leaves helper processes to `atexit`.
            sys.exit(_leave_facts(facts, rank, own))
        children[pid] = number
    return _end_together(children)


def _leave_facts(facts: Facts, rank: Rank, folder: Path) -> int:
    try:
        found = {**_in_process_group(facts, rank, folder / "rendezvous"), "pid": os.getpid()}
        (folder / f"{rank.rank}.json").write_text(json.dumps(found), encoding="utf-8")
        return 0
    except Exception:
        (folder / f"{rank.rank}.error").write_text(traceback.format_exc(), encoding="utf-8")
        return 1


def _in_process_group(facts: Facts, rank: Rank, rendezvous: Path) -> Mapping[str, Any]:
    import torch.distributed as dist

    from miles_periodic.compat.cpu.cuda_mode import CudaOnCpu

    os.environ.update(RANK=str(rank.rank), LOCAL_RANK="0", WORLD_SIZE=str(rank.world_size))
    dist.init_process_group(
        "gloo",
        init_method=rendezvous.as_uri(),
        rank=rank.rank,
        world_size=rank.world_size,
        timeout=timedelta(seconds=COLLECTIVE_SECONDS),
    )
    with CudaOnCpu():
        return facts(rank)


def _end_together(children: dict[int, int]) -> bool:
    """Wait for the ranks by their ids.

    After a failure they get a moment, then SIGKILL; so, too, where whoever started this is gone.
    """
    ok, deadline, starter = True, None, os.getppid()
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if os.getppid() != starter and deadline is None:
            ok, deadline = False, time.monotonic()
        if pid in children:
            del children[pid]
            if status:
                ok, deadline = False, deadline or time.monotonic() + GRACE_SECONDS
        elif deadline is not None and time.monotonic() > deadline:
            for each in children:
                os.kill(each, signal.SIGKILL)
            deadline = None
        else:
            time.sleep(POLL_SECONDS)
    return ok


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
