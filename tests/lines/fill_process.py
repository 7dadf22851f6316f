"""One process that fills replays by a real Miles's own code, alone and with our binding in.

    fill_process.py TREE

Prints for each layout what the routers of one train rank get, compared, and the bytes held. The
routers are Megatron's own; the process groups are numbers, because filling sends nothing.
"""

from __future__ import annotations

import importlib
import json
import sys
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace

TREE = Path(sys.argv[1])
sys.path.insert(0, str(TREE))

import numpy as np  # noqa: E402
import torch  # noqa: E402

from miles_periodic.compat import boot  # noqa: E402
from miles_periodic.compat.apply import apply_binding  # noqa: E402
from miles_periodic.compat.catalog import binding_names, bindings_named  # noqa: E402
from miles_periodic.compat.cpu.pinned_memory import allocate_pageable  # noqa: E402
from miles_periodic.compat.manifest import FeatureReference, RunManifest  # noqa: E402
from miles_periodic.compat.tree import Tree  # noqa: E402

SLUG = "delta-router-replay"
FEATURE = "miles_periodic.plugins.delta_router_replay.feature:DeltaRouterReplay"
KEY = "rollout_routed_experts"
NUM_LAYERS, TOP_K = 8, 2
MOE_LAYERS = [0, 1, 1, 0, 1, 1, 1, 1]
LENGTHS = (7, 12, 2, 9, 16, 5)
MICRO_BATCHES = ([1, 3], [0], [4, 5, 2])


def stand_ins():
    allocate_pageable(torch)
    torch.cuda.current_device = lambda: "cpu"
    sys.modules["sglang.srt.entrypoints.openai.encoding_dsv4"] = ModuleType("encoding_dsv4")


def member():
    features = (FeatureReference(SLUG, FEATURE, {}),)
    manifest = RunManifest("run", "", "", features)
    return SimpleNamespace(manifest=manifest, count=lambda name: None)


def routers_of(pipeline_size, pipeline_rank, virtual_size, with_mtp=False):
    """The model chunks of one rank, with Megatron's own routers in them, and their config."""
    from megatron.core import parallel_state
    from megatron.core.transformer.moe.router import TopKRouter
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_config import TransformerConfig
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    parallel_state.set_pipeline_model_parallel_rank(pipeline_rank)
    parallel_state.set_pipeline_model_parallel_world_size(pipeline_size)
    virtual = virtual_size if virtual_size > 1 else None
    config = TransformerConfig(
        num_layers=NUM_LAYERS,
        hidden_size=4,
        num_attention_heads=1,
        num_moe_experts=8,
        moe_router_topk=TOP_K,
        moe_layer_freq=MOE_LAYERS,
        pipeline_model_parallel_size=pipeline_size,
        virtual_pipeline_model_parallel_size=virtual,
        pipeline_dtype=torch.float32,
    )
    groups = SimpleNamespace(tp=None, cp=None, tp_cp=None, tp_dp_cp=None)
    chunks = []
    for stage in range(virtual_size):
        vp_stage = stage if virtual else None
        chunk = torch.nn.Module()
        chunk.module = torch.nn.Module()
        chunk.module.config = config
        first = get_transformer_layer_offset(config, vp_stage=vp_stage)
        for layer in range(first, first + get_num_layers_to_build(config, vp_stage=vp_stage)):
            if MOE_LAYERS[layer]:
                router = TopKRouter(config, groups)
                router.set_layer_number(layer + 1)
                chunk.module.add_module(f"layer_{layer}", router)
        chunks.append(chunk)
    if with_mtp:
        chunks[-1].module.mtp = torch.nn.Module()
        chunks[-1].module.mtp.router = TopKRouter(config, groups)
        chunks[-1].module.mtp.router.set_layer_number(2)
        chunks[-1].module.mtp.router.is_mtp = True
    return chunks


def group(rank, size):
    return SimpleNamespace(rank=rank, size=size)


def shard(num_experts, dtype):
    generator = np.random.default_rng(0)
    routes = []
    for length in LENGTHS:
        ids = generator.permuted(
            np.tile(np.arange(num_experts), (length - 1, NUM_LAYERS, 1)), axis=-1
        )
        routes.append(torch.from_numpy(ids[..., :TOP_K].astype(dtype)))
    longest = -(-max(LENGTHS) // 16) * 16
    return {
        KEY: routes,
        "tokens": [torch.zeros(length, dtype=torch.long) for length in LENGTHS],
        "max_seq_lens": [longest] * len(LENGTHS),
    }


class Line:
    """The fill of one line of Miles, called as its actor calls it."""

    def __init__(self):
        from miles.backends.training_utils import parallel
        from miles.backends.training_utils.data import DataIterator
        from miles.utils.replay_base import routing_replay_manager

        self.parallel, self.iterator = parallel, DataIterator
        self.manager = routing_replay_manager
        self.manager.enabled = True
        (self.binding,) = (
            b
            for b in bindings_named(binding_names(SLUG, "miles", Tree.at("miles", TREE)))
            if b.name.endswith("replay-fill")
        )
        self.module = importlib.import_module(self.binding.module)

    def put_in(self):
        apply_binding(self.binding, self.module)

    def fill(self, args, chunks, data):
        iterators = [self.iterator(data, None, [list(m) for m in MICRO_BATCHES]) for _ in chunks]
        replays = self.manager.replays
        numbers = [2, 1]
        if self.binding.name == "training/replay-fill":
            from miles.backends.megatron_utils.replay_utils import register_replay_list_moe

            self.module.fill_replay_data(
                args=args,
                models=chunks,
                data_iterator=iterators,
                num_microbatches=numbers,
                rollout_data=data,
                data_key=KEY,
                replay_list=replays,
                register_replay_list_func=register_replay_list_moe,
            )
            return
        from miles.backends.megatron_utils.replay_utils import get_register_replay_list_func

        actor = object.__new__(self.module.MegatronTrainRayActor)
        actor.args, actor.model = args, chunks
        actor._fill_replay_data(
            iterators,
            numbers,
            data,
            data_key=KEY,
            replay_list=replays,
            register_replay_list_func=get_register_replay_list_func(self.manager),
            if_sp_region=True,
        )


def layouts(has_contiguous_slices):
    """Everything that decides which rank replays what."""
    pipelines = ((1, 0, 1), (2, 0, 1), (2, 1, 1), (2, 0, 2), (2, 1, 2))
    contexts = ((1, 0, False), (2, 0, False), (2, 1, False))
    if has_contiguous_slices:
        contexts += ((2, 0, True), (2, 1, True))
    tensors = ((1, 0), (2, 1))
    experts = ((8, "uint8"), (300, "uint16"))
    yield from product(("thd", "bshd"), pipelines, contexts, tensors, experts)


def one(line, layout, with_mtp=False):
    qkv_format, pipeline, (cp_size, cp_rank, contiguous), (tp_size, tp_rank), experts = layout
    line.parallel.set_parallel_state(
        SimpleNamespace(cp=group(cp_rank, cp_size), tp=group(tp_rank, tp_size))
    )
    args = SimpleNamespace(
        qkv_format=qkv_format,
        data_pad_size_multiplier=4,
        sequence_parallel=tp_size > 1,
        allgather_cp=contiguous,
        num_layers=NUM_LAYERS,
        moe_router_topk=TOP_K,
        num_experts=experts[0],
    )
    line.manager.replays.clear()
    chunks = routers_of(*pipeline, with_mtp)
    data = shard(experts[0], line.dtype or experts[1])
    line.fill(args, chunks, data)
    held = [each for replay in line.manager.replays for each in replay.top_indices_list]
    assert KEY not in data
    popped = [
        [replay.pop_forward() for _ in replay.top_indices_list] for replay in line.manager.replays
    ]
    return popped, held


def main():
    stand_ins()
    boot._member = member()
    line = Line()
    every = list(layouts(has_contiguous_slices=line.binding.name == "training/replay-fill"))
    line.dtype = "int32"
    stock = [one(line, layout) for layout in every]
    line.put_in()
    line.dtype = None
    ours = [one(line, layout) for layout in every]
    layouts_compared = [compared(*parts) for parts in zip(every, stock, ours, strict=True)]
    one(line, every[0], with_mtp=True)
    layers = [len(replay.top_indices_list) for replay in line.manager.replays]
    print(json.dumps({"layouts": layouts_compared, "with_mtp": layers}))


def compared(layout, stock, ours):
    pairs = [
        (a, b)
        for one, other in zip(stock[0], ours[0], strict=True)
        for a, b in zip(one, other, strict=True)
    ]
    return {
        "layout": str(layout),
        "num_tensors": len(pairs),
        "num_padded": sum(int((a == -1).sum()) for a, _ in pairs),
        "equal": all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs),
        "stock_bytes": sum(t.numel() * t.element_size() for t in stock[1]),
        "held_bytes": sum(each.values[each.layer].nbytes for each in ours[1]),
        "itemsize": {"uint8": 1, "uint16": 2}[layout[4][1]],
    }


if __name__ == "__main__":
    main()
