"""Orders of trainers without cost-aware packing, to compare with.

Written after the behaviour of three upstreams:

* the Miles that the `miles-rl` 0.0.2 wheel holds: ranks by stride or, with `--balance-data`, by
  tokens in equal counts; micro-batches of a fixed size, or as many as first fit needs on the rank
  that needs most, filled by tokens without a look at the cap;
* Miles at git main, which packs first and gives micro-batches to ranks after that: first fit
  under the cap, or with `--balance-by-flops` a balance of FLOPs without a look at it;
* Megatron's `DpBalancedScheduler`: in the order of the samples, as many as fit.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Microbatches = list[list[list[int]]]
MilesOrder = Literal["in turn", "by tokens", "by FLOPs"]
#: Sum of its values, their number, and (position, value) of each, in the order of arrival.
Part = tuple[float, int, list[tuple[int, float]]]


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


def planned_first(
    lengths: Sequence[int],
    num_ranks: int,
    max_tokens: int,
    *,
    order: MilesOrder,
    flops: Sequence[float],
) -> Microbatches:
    """Micro-batches `[rank][slot]` as Miles main plans them, one optimizer step."""
    if order == "by FLOPs":
        bins = _balanced_bins(lengths, max_tokens, flops)
    else:
        longest_first = sorted(range(len(lengths)), key=lambda i: -lengths[i])
        bins = first_fit(longest_first, lengths, max_tokens)
    _split_fullest(bins, lengths, -(-len(bins) // num_ranks) * num_ranks)
    if order == "in turn":
        ranks = [list(range(rank, len(bins), num_ranks)) for rank in range(num_ranks)]
    else:
        weight = flops if order == "by FLOPs" else lengths
        weights = [sum(weight[i] for i in bin_) for bin_ in bins]
        ranks = [sorted(part) for part in differencing(weights, num_ranks, equal_counts=True)]
    return [[bins[index] for index in rank] for rank in ranks]


def _balanced_bins(
    lengths: Sequence[int], max_tokens: int, flops: Sequence[float]
) -> list[list[int]]:
    num_bins = -(-sum(lengths) // max_tokens)
    if num_bins >= len(lengths):
        return [[i] for i in range(len(lengths))]
    return [sorted(part) for part in differencing(flops, num_bins)]


def _split_fullest(bins: list[list[int]], lengths: Sequence[int], num_bins: int) -> None:
    """Halve the bin with the most tokens, of those with several samples, until there are enough."""
    while len(bins) < num_bins:
        shared = [(sum(lengths[i] for i in one), k) for k, one in enumerate(bins) if len(one) > 1]
        if not shared:
            raise ValueError(f"{len(lengths)} samples do not fill {num_bins} micro-batches")
        _, fullest = max(shared)
        halves: tuple[list[int], list[int]] = ([], [])
        filled = [0, 0]
        for sample in sorted(bins[fullest], key=lambda i: -lengths[i]):
            half = int(filled[0] > filled[1])
            halves[half].append(sample)
            filled[half] += lengths[sample]
        bins[fullest] = halves[0]
        bins.append(halves[1])


def in_arrival_order(lengths: Sequence[int], num_ranks: int, max_tokens: int) -> Microbatches:
    """Micro-batches `[rank][slot]` as Megatron's `DpBalancedScheduler` fills them.

    Where their number is no multiple of the ranks, the last samples of the last micro-batches
    that hold several move into micro-batches of their own.
    """
    bins: list[list[int]] = [[]]
    filled = 0
    for sample, length in enumerate(lengths):
        if filled + length > max_tokens and bins[-1]:
            bins.append([])
            filled = 0
        bins[-1].append(sample)
        filled += length
    num_missing = -len(bins) % num_ranks
    position = len(bins) - 1
    while num_missing:
        if position < 0:
            raise ValueError(f"{len(lengths)} samples do not fill {num_ranks} ranks")
        if len(bins[position]) > 1:
            bins.append([bins[position].pop()])
            num_missing -= 1
        else:
            position -= 1
    return [bins[rank::num_ranks] for rank in range(num_ranks)]


def first_fit_count(lengths: Sequence[int], max_tokens: int) -> int:
    """Bins that first fit opens when samples come in their given order."""
    return len(first_fit(range(len(lengths)), lengths, max_tokens))


def first_fit(order: Sequence[int], lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Bins of samples, each sample of `order` in the first bin that has room."""
    bins: list[list[int]] = []
    free: list[int] = []
    for sample in order:
        length = lengths[sample]
        for position, room in enumerate(free):
            if length <= room:
                bins[position].append(sample)
                free[position] = room - length
                break
        else:
            bins.append([sample])
            free.append(max_tokens - length)
    return bins


def differencing(
    values: Sequence[float], num_parts: int, *, equal_counts: bool = False
) -> list[list[int]]:
    """Positions of `values` in `num_parts` parts of like sums, the largest sum first.

    Karmarkar and Karp 1982: the two partial partitions with the widest spread are merged, the
    largest part of one with the smallest of the other, until one is left. With `equal_counts` it
    starts from partitions of one value per part, neighbours in size.
    """
    order = sorted(range(len(values)), key=lambda position: (values[position], position))
    step = num_parts if equal_counts else 1
    heap = [
        _Partition.of([(values[i], 1, [(i, values[i])]) for i in order[k : k + step]], num_parts)
        for k in range(0, len(order), step)
    ]
    heapq.heapify(heap)
    while len(heap) > 1:
        first, second = heapq.heappop(heap), heapq.heappop(heap)
        heapq.heappush(heap, first.merged(second))
    filled = [[position for position, _ in items] for _, _, items in heap[0].parts]
    return filled + [[] for _ in range(num_parts - len(filled))]


@dataclass(frozen=True)
class _Partition:
    """A partial partition: its parts that hold something, the largest first."""

    parts: list[Part]
    num_parts: int

    @classmethod
    def of(cls, parts: list[Part], num_parts: int) -> _Partition:
        return cls(sorted(parts, reverse=True), num_parts)

    @property
    def spread(self) -> float:
        return self.parts[0][0] - (self.parts[-1][0] if len(self.parts) == self.num_parts else 0)

    def __lt__(self, other: _Partition) -> bool:
        """Whether it is merged before `other`: a wider spread, then a larger largest part."""
        return (self.spread, self.parts[0]) > (other.spread, other.parts[0])

    def merged(self, other: _Partition) -> _Partition:
        """The largest part of one with the smallest of the other, and so on."""
        num_alone = self.num_parts - len(other.parts)
        shared = [
            (a[0] + b[0], a[1] + b[1], a[2] + b[2])
            for a, b in zip(self.parts[num_alone:], reversed(other.parts), strict=False)
        ]
        rest = other.parts[: len(other.parts) - len(shared)]
        return _Partition.of([*self.parts[:num_alone], *shared, *rest], self.num_parts)
