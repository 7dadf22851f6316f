"""The orders that are ready to be sent upstream, run from the very files that would be sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from types import ModuleType

import numpy as np

from miles_periodic.upstream.contributions import contributions

MILES = "miles/utils/slot_packing.py"
MEGATRON = "megatron/core/datasets/longest_first_packing.py"


def sent_orders(
    lengths: np.ndarray, flops: np.ndarray, num_ranks: int, max_tokens: int
) -> dict[str, Callable[[], Sequence[Sequence[Sequence[int]]]]]:
    """Name to what plans micro-batches `[rank][slot]` of samples, int64 and float64 [samples]."""
    tokens, costs = lengths.tolist(), flops.tolist()
    for_miles = partial(
        sent_module("miles", MILES).pack_slots,
        costs,
        tokens,
        max_tokens=max_tokens,
        num_ranks=num_ranks,
        align_to=num_ranks,
    )
    for_megatron = partial(
        sent_module("megatron", MEGATRON).pack_longest_first,
        tokens,
        max_tokens,
        num_ranks,
        num_ranks,
    )
    return {
        "sent: --balance-slots": lambda: _by_rank(for_miles(), num_ranks),
        "sent: dp_longest_first": lambda: _by_rank(for_megatron(), num_ranks),
    }


@lru_cache
def sent_module(upstream: str, path: str) -> ModuleType:
    """A file of a contribution as a module; it imports nothing but the standard library."""
    text = contributions()["cost-aware-packing", upstream].text(path)
    module = ModuleType(f"sent_to_{upstream}")
    exec(compile(text, path, "exec"), module.__dict__)
    return module


def _by_rank(
    micro_batches: Sequence[Sequence[int]] | None, num_ranks: int
) -> Sequence[Sequence[Sequence[int]]]:
    if micro_batches is None:
        raise ValueError("the order found no packing")
    return [micro_batches[rank::num_ranks] for rank in range(num_ranks)]
