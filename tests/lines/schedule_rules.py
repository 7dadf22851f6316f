"""What the trainers of Miles main ask of a schedule, and batches to ask it with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st

MAX_TOKENS = 40


def arguments(**changes: Any) -> SimpleNamespace:
    """What the schedule reads of Miles's arguments: a small dense model, and how to batch."""
    given = {
        "micro_batch_size": 1,
        "use_dynamic_batch_size": True,
        "max_tokens_per_gpu": MAX_TOKENS,
        "balance_data": False,
        "hidden_size": 16,
        "num_layers": 2,
        "num_attention_heads": 2,
        "num_query_groups": 2,
        "kv_channels": 8,
        "ffn_hidden_size": 64,
        "vocab_size": 32,
        "num_experts": None,
        "multi_latent_attention": False,
        # Megatron's parser gives these to every model.
        "q_lora_rank": None,
        "kv_lora_rank": 32,
        "qk_head_dim": 128,
        "qk_pos_emb_head_dim": 64,
        "v_head_dim": 128,
    }
    return SimpleNamespace(**{**given, **changes})


def parallel(num_ranks: int, *, context: int = 1, stages: int = 1, group: int | None = None):
    """The configuration that a train backend of Miles main reports."""
    return {
        "dp_size": num_ranks,
        "cp_size": context,
        "vpp_size": stages,
        "microbatch_group_size_per_vp_stage": group,
    }


@st.composite
def rollouts(draw) -> tuple[list[int], list[int]]:
    """(tokens, rollout) of each sample; rollouts of 1 to 3 samples, interleaved; some oversized."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=8, max_size=24))
    names = [name for name, size in enumerate(sizes) for _ in range(size)]
    order = draw(st.permutations(names))
    lengths = draw(
        st.lists(st.integers(1, MAX_TOKENS + 8), min_size=len(names), max_size=len(names))
    )
    return lengths, list(order)


def kept_steps(rollout_indices: list[int], global_batch_size: int) -> list[set[int]]:
    """Samples of each optimizer step: runs of whole rollouts, those left over dropped."""
    names = list(dict.fromkeys(rollout_indices))
    whole = len(names) // global_batch_size * global_batch_size
    steps = [set(names[k : k + global_batch_size]) for k in range(0, whole, global_batch_size)]
    return [{i for i, name in enumerate(rollout_indices) if name in step} for step in steps]


def broken_rules(
    schedule: Any,
    lengths: list[int],
    steps: list[set[int]],
    *,
    max_tokens: int | None = None,
    max_samples: int | None = None,
    slot_multiple: int = 1,
) -> list[str]:
    """The rules that a schedule breaks, in words; empty where it keeps all of them."""
    partitions, micro_batch_indices, num_microbatches, num_rollouts = schedule
    broken = []
    if not len(num_microbatches) == len(num_rollouts) == len(steps):
        broken.append("a number of micro-batches and of rollouts for each step")
    if any(count < 1 or count % slot_multiple for count in num_microbatches):
        broken.append("a multiple of micro-batches in each step")
    trained: list[set[int]] = [set() for _ in steps]
    for partition, rank in zip(partitions, micro_batch_indices, strict=True):
        if len(rank) != sum(num_microbatches):
            broken.append("as many micro-batches on each rank")
            continue
        if [position for one in rank for position in one] != list(range(len(partition))):
            broken.append("micro-batches that tile the partition")
        step_of_slot = [s for s, count in enumerate(num_microbatches) for _ in range(count)]
        for step, micro_batch in zip(step_of_slot, rank, strict=True):
            samples = [partition[position] for position in micro_batch]
            trained[step].update(samples)
            if not samples or len(samples) > (max_samples or len(samples)):
                broken.append("a micro-batch with samples, not too many")
            tokens = sum(lengths[sample] for sample in samples)
            if max_tokens is not None and tokens > max_tokens and len(samples) > 1:
                broken.append("no micro-batch of several samples over the cap")
    if trained != steps or sum(map(len, partitions)) != sum(map(len, steps)):
        broken.append("every kept sample once, in its own step")
    return broken
