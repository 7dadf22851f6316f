"""Orders that trainers use without a cost model: by stride, or by tokens with differencing.

Written after the behaviour of the Miles that the `miles-rl` 0.0.2 wheel holds: ranks by stride or,
with `--balance-data`, by tokens in equal counts; micro-batches of a fixed size, or as many as first
fit needs on the rank that needs most, filled by tokens without a look at the cap.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count

Microbatches = list[list[list[int]]]


def rank_orders(lengths: Sequence[int], num_ranks: int, *, balance: bool) -> list[list[int]]:
    """Sample indices of each rank."""
    if not balance:
        return [list(range(rank, len(lengths), num_ranks)) for rank in range(num_ranks)]
    return [sorted(part) for part in differencing(lengths, num_ranks, equal_counts=True)]


def fixed_size(orders: Sequence[Sequence[int]], size: int) -> Microbatches:
    """Micro-batches `[rank][slot]` of `size` consecutive samples."""
    return [
        [list(order[start : start + size]) for start in range(0, len(order), size)]
        for order in orders
    ]


def under_cap(
    orders: Sequence[Sequence[int]], lengths: Sequence[int], max_tokens: int
) -> Microbatches:
    """Micro-batches `[rank][slot]` by tokens, on every rank as many as the fullest rank needs."""
    num_slots = max(first_fit_count([lengths[i] for i in order], max_tokens) for order in orders)
    planned = []
    for order in orders:
        parts = differencing([lengths[i] for i in order], num_slots)
        planned.append([[order[position] for position in sorted(part)] for part in parts])
    return planned


def first_fit_count(lengths: Sequence[int], max_tokens: int) -> int:
    """Bins that first fit opens when samples come in their given order."""
    bins: list[int] = []
    for length in lengths:
        for position, filled in enumerate(bins):
            if filled + length <= max_tokens:
                bins[position] += length
                break
        else:
            bins.append(length)
    return len(bins)


def differencing(
    values: Sequence[int], num_parts: int, *, equal_counts: bool = False
) -> list[list[int]]:
    """Positions of `values` in `num_parts` parts of like sums, the largest sum first.

    Karmarkar and Karp 1982: the two partial partitions with the widest spread are merged, the
    largest part of one with the smallest of the other, until one is left. With `equal_counts` it
    starts from partitions of one value per part, neighbours in size.
    """
    order = sorted(range(len(values)), key=lambda position: values[position])
    step = num_parts if equal_counts else 1
    ticket = count()
    heap = []
    for start in range(0, len(order), step):
        singles = [(values[i], [i]) for i in reversed(order[start : start + step])]
        parts = singles + [(0, []) for _ in range(num_parts - len(singles))]
        heap.append(_entry(parts, next(ticket)))
    heapq.heapify(heap)
    while len(heap) > 1:
        *_, first = heapq.heappop(heap)
        *_, second = heapq.heappop(heap)
        merged = sorted(
            ((a + b, x + y) for (a, x), (b, y) in zip(first, reversed(second), strict=True)),
            key=lambda part: -part[0],
        )
        heapq.heappush(heap, _entry(merged, next(ticket)))
    return [part for _, part in heap[0][-1]]


def _entry(parts: list[tuple[int, list[int]]], ticket: int) -> tuple:
    """Sorts before partitions with a narrower spread, then before those with a smaller largest."""
    largest, smallest = parts[0][0], parts[-1][0]
    return smallest - largest, -largest, ticket, parts
