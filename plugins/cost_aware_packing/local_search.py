"""Improve a packing by exchanges between bins until it is good enough, stuck, or out of time.

The dearest bin of a slot hands a sample to another bin, or swaps one for a cheaper one. An exchange
counts if the slot time falls; or if it stays and one bin fewer stands at the top of a slot. When
none is left, a few random swaps are tried from the best packing so far and kept if they lead lower.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from miles_periodic.plugins.cost_aware_packing.problem import (
    StepProblem,
    bin_costs,
)

GOOD_ENOUGH_RATIO = 1.002
MAX_GIVERS = 48
MAX_TAKERS = 4096
NUM_SLOTS_TRIED = 8
NUM_SHAKES = 3
MAX_STUCK = 400


@dataclass(frozen=True)
class Exchange:
    """Sample `given` goes to bin `target`; sample `taken` comes back, or none (-1)."""

    given: int
    target: int
    taken: int


@dataclass
class Limit:
    """How long to search: until `deadline` (`time.monotonic()` seconds), or for so many exchanges.

    One of exchanges alone depends on no clock.
    """

    deadline: float = math.inf
    num_exchanges: float = math.inf

    def is_reached(self) -> bool:
        return self.num_exchanges <= 0 or time.monotonic() >= self.deadline

    def count(self) -> None:
        self.num_exchanges -= 1


class BinState:
    """Samples in bins with running sums, and the slots that the bins make when sorted by cost."""

    def __init__(self, problem: StepProblem, bin_of_sample: np.ndarray, num_bins: int) -> None:
        self.problem = problem
        self.tolerance = 1e-12 * float(problem.costs.sum())
        self.bin_of_sample = bin_of_sample.copy()
        self.costs = bin_costs(problem, bin_of_sample, num_bins)
        self.tokens = np.bincount(
            bin_of_sample, weights=problem.lengths, minlength=num_bins
        ).astype(np.int64)
        self.counts = np.bincount(bin_of_sample, minlength=num_bins)
        self.sort_into_slots()

    def sort_into_slots(self) -> None:
        """Recompute which bin is in which slot, and the two highest costs of each slot."""
        num_ranks = self.problem.num_ranks
        order = np.argsort(-self.costs, kind="stable")
        self.slot_of_bin = np.empty(len(order), dtype=np.int64)
        self.slot_of_bin[order] = np.arange(len(order)) // num_ranks
        self.bins_of_slot = order.reshape(-1, num_ranks)
        self.cost_by_slot = self.costs[self.bins_of_slot]
        self.slot_max = self.cost_by_slot[:, 0]

    @property
    def slot_time(self) -> float:
        return float(self.slot_max.sum())

    def apply(self, exchange: Exchange) -> None:
        source = int(self.bin_of_sample[exchange.given])
        self._move(exchange.given, source, exchange.target)
        if exchange.taken >= 0:
            self._move(exchange.taken, exchange.target, source)
        self.sort_into_slots()

    def _move(self, sample: int, source: int, target: int) -> None:
        for bin_index, sign in ((source, -1), (target, 1)):
            self.costs[bin_index] += sign * self.problem.costs[sample]
            self.tokens[bin_index] += sign * self.problem.lengths[sample]
            self.counts[bin_index] += sign
        self.bin_of_sample[sample] = target


def improve(
    problem: StepProblem,
    bin_of_sample: np.ndarray,
    num_slots: int,
    *,
    floor: float,
    limit: Limit,
    seed: int,
) -> np.ndarray:
    """A packing into as many bins that is no worse than `bin_of_sample`, int64 [samples].

    Stops at `GOOD_ENOUGH_RATIO` times `floor` (a lower bound on the slot time) or at `limit`, which
    is used up. Two runs that are not cut by a deadline give the same packing.
    """
    rng = np.random.default_rng(seed)
    num_bins = num_slots * problem.num_ranks
    state = BinState(problem, bin_of_sample, num_bins)
    best, best_time = state.bin_of_sample.copy(), state.slot_time
    target_time = floor * GOOD_ENOUGH_RATIO
    num_stuck = 0
    while best_time > target_time and num_stuck < MAX_STUCK and not limit.is_reached():
        _descend(state, target_time, limit, rng)
        num_stuck += 1
        if state.slot_time < best_time - state.tolerance:
            best, best_time, num_stuck = state.bin_of_sample.copy(), state.slot_time, 0
        state = BinState(problem, best, num_bins)
        _shake(state, rng)
    return best


def _descend(state: BinState, target_time: float, limit: Limit, rng: np.random.Generator) -> None:
    while state.slot_time > target_time and not limit.is_reached():
        exchange = _first_exchange(state, rng)
        limit.count()
        if exchange is None:
            return
        state.apply(exchange)


def _first_exchange(state: BinState, rng: np.random.Generator) -> Exchange | None:
    """The best exchange of the slot that wastes most, else of the next one, and so on."""
    waste = (state.slot_max[:, None] - state.cost_by_slot).sum(axis=1)
    for slot in np.argsort(-waste, kind="stable")[:NUM_SLOTS_TRIED].tolist():
        exchange = best_exchange(state, slot, rng)
        if exchange is not None:
            return exchange
    return None


def best_exchange(state: BinState, slot: int, rng: np.random.Generator) -> Exchange | None:
    """The exchange that relieves the dearest bin of `slot` most, or None where none helps."""
    problem, source = state.problem, int(state.bins_of_slot[slot, 0])
    givers = _thinned(np.flatnonzero(state.bin_of_sample == source), problem.costs)
    takers, targets = _takers(state, source, rng)
    real = takers >= 0
    drop = problem.costs[givers][:, None] - np.where(real, problem.costs[takers], 0.0)
    growth = problem.lengths[givers][:, None] - np.where(real, problem.lengths[takers], 0)
    allowed = state.tokens[targets] + growth <= problem.token_cap
    allowed &= state.tokens[source] - growth <= problem.token_cap
    allowed &= real | (state.counts[targets] < problem.sample_cap)
    gain, relief = _effect(state, slot, source, targets, drop)
    helps = allowed & (drop > state.tolerance)
    helps &= (gain > state.tolerance) | ((gain >= 0) & (relief > state.tolerance))
    if not helps.any():
        return None
    gain = np.where(helps, gain, -np.inf)
    finalists = gain >= gain.max() - state.tolerance
    row, column = np.unravel_index(np.where(finalists, relief, -np.inf).argmax(), relief.shape)
    return Exchange(int(givers[row]), int(targets[column]), int(takers[column]))


def _effect(
    state: BinState, slot: int, source: int, targets: np.ndarray, drop: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """What `drop` less in `source` and more in `targets` does, each float64 [givers, takers].

    First, by how much the slot time falls while the bins keep their slots (sorting them again can
    only add to it). Second, the smaller of two distances to the old tops: of `source`, and of the
    target from the top of its slot.
    """
    top, second = state.cost_by_slot[slot, 0], _second(state, slot)
    same_slot = state.slot_of_bin[targets] == slot
    source_after, target_after = top - drop, state.costs[targets] + drop
    slot_after = np.maximum(second, source_after)
    target_top = state.slot_max[state.slot_of_bin[targets]]
    growth_elsewhere = np.maximum(0.0, target_after - target_top)
    gain = np.where(
        same_slot, top - np.maximum(slot_after, target_after), top - slot_after - growth_elsewhere
    )
    return gain, np.minimum(drop, target_top - target_after)


def _second(state: BinState, slot: int) -> float:
    return float(state.cost_by_slot[slot, 1]) if state.problem.num_ranks > 1 else 0.0


def _thinned(givers: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """At most `MAX_GIVERS` of them, spread over their costs."""
    if len(givers) <= MAX_GIVERS:
        return givers
    by_cost = givers[np.argsort(costs[givers], kind="stable")]
    return by_cost[np.linspace(0, len(givers) - 1, MAX_GIVERS).astype(np.int64)]


def _takers(
    state: BinState, source: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Samples that can come back (-1: none) and the bins they are in; none of them in `source`."""
    bins = np.arange(len(state.costs))
    takers = np.arange(state.problem.num_samples)
    targets = state.bin_of_sample
    if state.problem.samples_per_bin is None and state.counts[source] > 1:
        takers = np.concatenate([takers, np.full(len(bins), -1)])
        targets = np.concatenate([targets, bins])
    elsewhere = np.flatnonzero(targets != source)
    if len(elsewhere) > MAX_TAKERS:
        elsewhere = np.sort(rng.choice(elsewhere, MAX_TAKERS, replace=False))
    return takers[elsewhere], targets[elsewhere]


def _shake(state: BinState, rng: np.random.Generator) -> None:
    """A few random swaps that the cap allows."""
    problem = state.problem
    for first, second in rng.integers(problem.num_samples, size=(NUM_SHAKES, 2)).tolist():
        source, target = int(state.bin_of_sample[first]), int(state.bin_of_sample[second])
        growth = int(problem.lengths[first] - problem.lengths[second])
        fuller = max(state.tokens[target] + growth, state.tokens[source] - growth)
        if source != target and fuller <= problem.token_cap:
            state.apply(Exchange(first, target, second))
