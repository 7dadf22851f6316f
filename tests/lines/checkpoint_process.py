"""Two ranks that save one state by a real Megatron-core, alone and with our bindings in.

    checkpoint_process.py TREE FOLDER

Megatron is imported once, and the ranks are forked from there. Prints what each rank saw, as JSON:
rank 0's facts, then rank 1's as far as it lived. No model is needed: the state is made of every
kind of tensor that a planner hands to a writer.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from pathlib import Path

TREE, FOLDER = Path(sys.argv[1]), Path(sys.argv[2])
sys.path.insert(0, str(TREE))

STAGING_BYTES = 1 << 20
BIG_ELEMENTS = 700_000
WORLD_SIZE = 2
WAIT_SECONDS = 600


def main():
    import torch

    from miles_periodic.compat.cpu.cuda_on_cpu import cuda_functions_on_cpu

    torch.set_num_threads(1)
    cuda_functions_on_cpu(torch)
    build_no_extension()
    importlib.import_module("megatron.core.dist_checkpointing")
    ranks = [forked(rank) for rank in range(WORLD_SIZE)]
    wait_for(ranks[0])
    for pid in ranks:
        # Whatever it left too: the queue that Megatron starts outlives a rank that is killed.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    facts = [FOLDER / f"facts-{rank}.json" for rank in range(WORLD_SIZE)]
    print(json.dumps([json.loads(path.read_text()) for path in facts if path.exists()]))


def forked(rank):
    """The id of a process that is one rank, in a group of its own."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        try:
            one_rank(rank)
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    return pid


def wait_for(pid):
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end and os.waitpid(pid, os.WNOHANG) == (0, 0):
        time.sleep(0.05)


def one_rank(rank):
    import torch

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{FOLDER}/meeting", rank=rank, world_size=WORLD_SIZE
    )
    from lone_process import counts

    facts = {"rank": rank}
    try:
        Scenes(rank, facts).play()
    finally:
        facts["consulted"] = sorted(counts)
        (FOLDER / f"facts-{rank}.json").write_text(json.dumps(facts))


def build_no_extension():
    """0.15 builds a CUDA extension when it is imported, and does without where that fails."""
    from torch.utils import cpp_extension

    def refuse(**options):
        raise RuntimeError("there is no GPU to build for")

    cpp_extension.load_inline = refuse


class Scenes:
    """What happens, in this order; both ranks play each."""

    def __init__(self, rank, facts):
        self.rank, self.facts = rank, facts
        self.memories = []

    def play(self):
        self.native()
        self.put_in()
        self.in_place()
        self.staged()
        self.asynchronous()
        self.file_too_large()
        self.no_host_memory()
        self.killed()

    def native(self):
        self.save("native")
        self.expected = self.load("native")
        self.facts["native_files"] = self.files("native")

    def put_in(self):
        from lone_process import join

        from miles_periodic.compat.catalog import binding_names, bindings_named
        from miles_periodic.compat.manifest import FeatureReference, RunManifest
        from miles_periodic.compat.tree import Tree
        from miles_periodic.plugins.chunked_checkpoint_staging.feature import (
            ChunkedCheckpointStaging,
        )
        from miles_periodic.plugins.chunked_checkpoint_staging.settings import (
            SLUG,
            ChunkedCheckpointStagingSettings,
        )

        settings = ChunkedCheckpointStagingSettings(staging_bytes=STAGING_BYTES)
        names = binding_names(SLUG, "megatron", Tree.at("megatron", TREE))
        feature = FeatureReference.of(ChunkedCheckpointStaging, settings)
        join(RunManifest("run", "", "", (feature,), bindings_named(names)))
        self.facts["bindings"] = names
        self.watch_memory()

    def watch_memory(self):
        from miles_periodic.compat.bindings.staging_memory import StagingMemory

        made, memories = StagingMemory.__init__, self.memories

        def watched(memory, *args):
            made(memory, *args)
            memories.append(memory)

        StagingMemory.__init__ = watched

    def in_place(self):
        """Host tensors: nothing is copied but what cannot be written from where it lies."""
        self.save("in-place")
        self.compare("in-place")

    def staged(self):
        """Every tensor as if it were on a GPU."""
        from miles_periodic.compat.bindings import staging_memory

        staging_memory.lies_on_host = lambda tensor: False
        self.save("staged")
        self.compare("staged")

    def asynchronous(self):
        import inspect

        from megatron.core.dist_checkpointing import save
        from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue

        self.folder("asynchronous")
        named = "async_strategy" in inspect.signature(save).parameters
        request = save(
            self.state(),
            str(FOLDER / "asynchronous"),
            async_sharded_save=True,
            **({"async_strategy": "mcore"} if named else {}),
        )
        self.facts["asynchronous_preloads"] = request.preload_fn is not None
        calls = AsyncCallsQueue()
        calls.schedule_async_request(request)
        calls.maybe_finalize_async_calls(blocking=True)
        self.compare("asynchronous")

    def file_too_large(self):
        """Rank 1 may write no file beyond some bytes: the kernel refuses, as on a full disk."""
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        if self.rank == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, limits[1]))
        self.refused("file-too-large")
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    def no_host_memory(self):
        """Rank 1 gets no memory for its copies."""
        from miles_periodic.compat.bindings.staging_memory import StagingMemory

        take = StagingMemory._take

        def starved(memory, num_bytes):
            limits = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (1 << 20, limits[1]))
            try:
                take(memory, num_bytes + (1 << 30))  # more than the heap has left of earlier use
            finally:
                resource.setrlimit(resource.RLIMIT_AS, limits)

        if self.rank == 1:
            StagingMemory._take = starved
        self.refused("no-host-memory")
        StagingMemory._take = take

    def killed(self):
        """Rank 1 dies in its second wave; nobody may take what is on the disk for a checkpoint."""
        from miles_periodic.compat.bindings.staging_memory import StagingMemory

        stage, begun = StagingMemory.stage, []

        def mortal(memory, tensors):
            begun.append(memory)
            if len(begun) == 2:
                (FOLDER / "facts-1.json").write_text(json.dumps(self.facts))
                os.kill(os.getpid(), signal.SIGKILL)
            return stage(memory, tensors)

        if self.rank == 1:
            StagingMemory.stage = mortal
        self.refused("killed")

    # what the scenes are made of

    def state(self):
        """A rank's state: views of a flat buffer as DDP makes them, odd dtypes, odd shapes."""
        import torch
        from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor

        torch.manual_seed(self.rank)
        flat = torch.randn(600_000).to(torch.bfloat16)
        tensors = {
            "view": flat[5:300_005].view(1000, 300),
            "transposed": flat[300_005:500_005].view(500, 400).t(),
            "big": torch.randn(BIG_ELEMENTS),
            "fp8": torch.randn(3000).to(torch.float8_e4m3fn),
            "flags": torch.randn(17) > 0,
            "step": torch.tensor(7 + self.rank),
            **{f"layer.{n}": torch.randn(1 + 7919 * n) for n in range(12)},
        }
        split = {"step"}
        state = {
            key: ShardedTensor.from_rank_offsets(
                key if key not in split else f"{key}.{self.rank}",
                tensor,
                *(() if key in split else ((0, self.rank, WORLD_SIZE),)),
            )
            for key, tensor in tensors.items()
        }
        state["object"] = ShardedObject(
            "object", {"rank": self.rank}, (WORLD_SIZE,), (self.rank,), replica_id=0
        )
        state["common"] = {"iteration": 3}
        return state

    def save(self, name):
        from megatron.core.dist_checkpointing import save

        self.folder(name)
        save(self.state(), str(FOLDER / name))

    def folder(self, name):
        import torch

        (FOLDER / name).mkdir(exist_ok=True)
        torch.distributed.barrier()

    def load(self, name):
        from megatron.core.dist_checkpointing import load

        template = self.state()
        for sharded in template.values():
            if hasattr(sharded, "data") and hasattr(sharded.data, "zero_"):
                sharded.data = sharded.data.clone().zero_()
        return load(template, str(FOLDER / name))

    def compare(self, name):
        import torch

        loaded, unequal = self.load(name), []
        for key, value in self.expected.items():
            found = loaded[key]
            if isinstance(value, torch.Tensor):
                same = value.dtype == found.dtype and value.shape == found.shape
                bits = [t.contiguous().reshape(-1).view(torch.uint8) for t in (value, found)]
                same = same and torch.equal(*bits)
            else:
                same = value == found
            if not same:
                unequal.append(key)
        self.facts[name] = {"unequal": unequal, "compared": len(self.expected)}
        self.facts[name] |= {"files": self.files(name), **self.memory()}

    def refused(self, name):
        self.memories.clear()
        try:
            self.save(name)
            error = ""
        except BaseException as caught:
            error = f"{type(caught).__name__}: {caught}"
        written = sorted(path.name for path in (FOLDER / name).iterdir())
        self.facts[name] = {"error": error, "written": written, **self.memory()}

    def memory(self):
        facts = {
            "peak_bytes": max((m.peak_bytes for m in self.memories), default=0),
            "shared_bytes": max((m.shared_bytes for m in self.memories), default=0),
            "held_bytes": sum(m.held_bytes for m in self.memories),
            "num_memories": len(self.memories),
        }
        self.memories.clear()
        return facts

    def files(self, name):
        own = f"__{self.rank}_*.distcp"
        return sorted(path.name for path in (FOLDER / name).glob(own))


if __name__ == "__main__":
    main()
