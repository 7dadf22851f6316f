"""One process that splits a batch by the code of Miles at git main, bound as in a run.

    schedule_process.py TREE

Splits 24 samples over 3 ranks, hands each rank's shard to Miles's own iterator, and prints what
came out as one line of JSON. Nothing is generated or trained: the object store and the parallel
state, which need a run, are stand-ins.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace

TREE = Path(sys.argv[1])
sys.path.insert(0, str(TREE))

import lone_process  # noqa: E402
from schedule_rules import MAX_TOKENS, arguments, broken_rules, kept_steps, parallel  # noqa: E402

from miles_periodic.compat import boot  # noqa: E402
from miles_periodic.compat.catalog import binding_names, bindings_named  # noqa: E402
from miles_periodic.compat.manifest import FeatureReference, RunManifest  # noqa: E402
from miles_periodic.compat.tree import Tree  # noqa: E402

SLUG = "cost-aware-packing"
FEATURE = "miles_periodic.plugins.cost_aware_packing.feature:CostAwarePacking"
NUM_RANKS = 3
NAMES = [name for name in range(14) for _ in range(1 + name % 2)] + [14, 15, 15]
LENGTHS = [1 + (7 * number) % MAX_TOKENS for number in range(len(NAMES))]
#: Its `__init__` imports the whole trainer; only the files count here.
HOLLOW = ("miles.backends.training_utils",)


def join() -> tuple[Counter, list[str]]:
    """The bindings of a run on this tree, with how often each was called, and what was told."""
    names = binding_names(SLUG, "miles", Tree.at("miles", TREE))
    wanted = [b for b in bindings_named(names) if b.name.startswith("training/")]
    manifest = RunManifest("run", "", "", (FeatureReference(SLUG, FEATURE, {}),), tuple(wanted))
    lone_process.join(manifest)
    counts, notices = Counter(), []
    member = boot.member()
    member.count = lambda name: counts.update([name])
    member.notice = notices.append
    return counts, notices


def hollow_out() -> None:
    for name in HOLLOW:
        package = sys.modules[name] = ModuleType(name)
        package.__path__ = [str(TREE.joinpath(*name.split(".")))]
    # Only the stock SGLang that Miles main is made for has it.
    sys.modules["sglang.srt.entrypoints.openai.encoding_dsv4"] = ModuleType("encoding_dsv4")


def batch() -> dict:
    """Samples whose every field tells which sample it is of."""
    numbers = range(len(NAMES))
    return {
        "tokens": [[number] * length for number, length in zip(numbers, LENGTHS, strict=True)],
        "rollout_ids": list(NAMES),
        **{key: list(numbers) for key in ("rewards", "response_lengths", "loss_masks")},
    }


def main() -> None:
    hollow_out()
    counts, notices = join()
    from miles.backends.training_utils import data as training_data
    from miles.ray.rollout import train_data_conversion as conversion

    args = arguments(
        global_batch_size=8, use_dynamic_global_batch_size=False, qkv_format="thd", lora_rank=0
    )
    shards = conversion.split_train_data_by_dp_scheduled_raw(
        args, batch(), train_parallel_config=parallel(NUM_RANKS)
    )
    partitions = [shard["partition"] for shard in shards]
    indices = [shard["micro_batch_indices"] for shard in shards]
    counted, rollouts = shards[0]["num_microbatches"], shards[0]["num_rollouts"]
    steps = kept_steps(NAMES, 8)
    training_data.get_parallel_state = lambda: SimpleNamespace(vpp_size=1)
    iterated, handed = [], []
    for shard in shards:
        shard = conversion.process_rollout_data_shard(args, shard)
        (iterator,), num_microbatches = training_data.get_data_iterator(args, None, shard)
        handed.append(num_microbatches)
        iterated.append(
            [iterator.get_next(["rewards"])["rewards"] for _ in range(sum(num_microbatches))]
        )
    conversion.split_train_data_by_dp_raw(args, batch(), dp_size=NUM_RANKS)
    print(
        json.dumps(
            {
                "broken": broken_rules(
                    (partitions, indices, counted, rollouts), LENGTHS, steps, max_tokens=MAX_TOKENS
                ),
                "misplaced": [
                    key
                    for shard, partition in zip(shards, partitions, strict=True)
                    for key in ("rewards", "response_lengths", "loss_masks")
                    if shard[key] != partition
                    or [tokens[0] for tokens in shard["tokens"]] != partition
                ],
                "planned": [
                    [[partition[position] for position in one] for one in rank]
                    for partition, rank in zip(partitions, indices, strict=True)
                ],
                "iterated": iterated,
                "num_microbatches": handed,
                "given_num_microbatches": [counted] * NUM_RANKS,
                "counts": counts,
                "notices": notices,
            }
        )
    )


main()
