"""A proved lower bound on the slot time of every schedule, whatever its number of slots.

Notation: n samples, R ranks, M the token cap; sample i has length l_i <= M and cost c_i >= 0, total
cost C; m_s is the time of slot s, its dearest micro-batch. Slot time is the sum of all m_s.

1. *Share.* Slot s holds at most R * m_s of cost, so the sum of m_s is at least C / R.

2. *Order statistics.* Let there be S slots, sorted so that m_1 >= ... >= m_S, and k or more samples
   in each micro-batch. Slots j..S hold at least q = (S - j + 1) * R * k samples; the dearest of
   these is no cheaper than the q-th cheapest sample of all and shares its micro-batch with k - 1
   others, so m_j is at least that sample plus the k - 1 cheapest. The sum over j grows with S, and
   S is at least what tokens, the exact sample count and the slot multiple demand.

3. *Pigeonhole.* Take the p dearest samples, the cheapest of them at cost b > 0. A micro-batch of
   slot s holds at most floor(m_s / b) of them, so R times the sum of these whole numbers is at
   least p, the sum at least ceil(p / R), and the slot time at least b * ceil(p / R).

4. *Giants.* Take the p dearest samples, the cheapest of them at cost b; t slots hold one or more
   of them. A slot holds at most G of them, so the j-th dearest of these slots is no cheaper than
   sample (j - 1) * G + 1 in descending cost, nor than b: together at least X, which is also at
   least the b * ceil(p / R) of the pigeonhole, for no other slot holds any. The t slots hold at
   most K of cost (below), the others C minus that, at least its R-th part in time. With x >= X for
   the time of the t slots, the slot time is at least x + max(0, C - min(R * x, K)) / R, which does
   not fall when x grows. So it is at least max(C / R, X + (C - K) / R) for this t, and the minimum
   over every t that is possible bounds all schedules. The best p counts.

   *Pairs.* Where no micro-batch holds more than two giants, say that D hold two; then
   p - t * R <= D <= p / 2. The top of the j-th dearest slot is the dearest micro-batch of those
   that are left when the k = (j - 1) * R dearest of the t slots are taken away. These held at most
   k + min(k, D) giants, so the top is no cheaper than the dearest of as many of the cheapest giants
   as are left at least. At least D - k pairs are left, too, and the dearest of D - k pairs is no
   cheaper than it is among the 2 * (D - k) cheapest giants with the dearest paired with the
   cheapest and so on inwards. The larger of the two, summed over j, is at least X for this D; the
   minimum over D is at least X for all.

   *K and t.* A weight f is dual feasible when the samples of any micro-batch that is allowed weigh
   at most 1 together. t slots are t * R micro-batches, so their cost is at most that of a
   fractional knapsack of capacity t * R over all samples by c / f; the lowest over several weights
   is used. For the same reason the p giants, all in t slots, weigh at most t * R.
   The weights: with x = l / M, x itself; for a whole k, floor((k + 1) x) / k, or x where (k + 1) x
   is whole (Fekete and Schepers 2001: sizes just over 1 / (k + 1) are counted as 1 / k);
   for e <= 1/2, 1 above 1 - e, 0 below e, x between (a sample above 1 - e leaves only room for
   those below e); 1 / k where a micro-batch holds k samples, exactly or at most; and the average
   of any two of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from miles_periodic.plugins.cost_aware_packing.problem import StepProblem

NUM_ROUNDED_WEIGHTS = 4
NUM_CUT_WEIGHTS = 6
NUM_GIANT_COUNTS = 32
MOST_PAIRED_GIANTS = 256


@dataclass(frozen=True)
class Knapsack:
    """Most cost that fits into a capacity, by one dual feasible weight.

    Attributes:
        weight: running weight of the samples by descending cost per weight, float64 [samples + 1].
        cost: their running cost, float64 [samples + 1].
        giants_weight: running weight of the samples by descending cost, float64 [samples + 1].
    """

    weight: np.ndarray
    cost: np.ndarray
    giants_weight: np.ndarray

    @classmethod
    def build(cls, weights: np.ndarray, costs: np.ndarray, dearest_first: np.ndarray) -> Knapsack:
        with np.errstate(divide="ignore", invalid="ignore"):
            density = np.where(weights > 0, costs / weights, np.inf)
        order = np.argsort(-density, kind="stable")
        return cls(
            _running(weights[order]),
            _running(costs[order]),
            _running(weights[dearest_first]),
        )

    def most_cost(self, capacity: float) -> float:
        return float(np.interp(capacity, self.weight, self.cost))

    def fewest_bins(self, num_giants: int) -> int:
        return int(np.ceil(self.giants_weight[num_giants] * (1 - 1e-12)))


def lower_bound(problem: StepProblem) -> float:
    """No schedule of `problem` has a lower slot time; in the unit of its costs."""
    share = float(problem.costs.sum()) / problem.num_ranks
    known = max(share, _order_statistics_bound(problem), _pigeonhole_bound(problem))
    return _giants_bound(problem, known)


def _running(values: np.ndarray) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(values)])


def _order_statistics_bound(problem: StepProblem) -> float:
    ascending = np.sort(problem.costs)
    per_bin = problem.samples_per_bin or 1
    per_slot = problem.num_ranks * per_bin
    last_of_each = np.arange(1, problem.fewest_slots + 1) * per_slot - 1
    companions = float(ascending[: per_bin - 1].sum())
    return float((ascending[last_of_each] + companions).sum())


def _pigeonhole_bound(problem: StepProblem) -> float:
    descending = np.sort(problem.costs)[::-1]
    rounds = np.arange(problem.num_samples) // problem.num_ranks + 1
    return float((descending * rounds).max())


def _giants_bound(problem: StepProblem, known: float) -> float:
    """The best over several numbers of giants, no less than the bound `known` so far."""
    dearest_first = np.argsort(-problem.costs, kind="stable")
    descending, lengths = problem.costs[dearest_first], problem.lengths[dearest_first]
    knapsacks = [Knapsack.build(w, problem.costs, dearest_first) for w in _weights(problem)]
    best = known
    for num_giants in _giant_counts(problem):
        per_bin = _most_giants_per_bin(problem, lengths[:num_giants])
        per_slot = problem.num_ranks * per_bin
        bound = _bound_for_giants(problem, descending, knapsacks, num_giants, per_slot, best)
        best = max(best, bound)
    return best


def _bound_for_giants(
    problem: StepProblem,
    descending: np.ndarray,
    knapsacks: list[Knapsack],
    num_giants: int,
    per_slot: int,
    known: float,
) -> float:
    """The minimum over the number of slots that hold giants; stops once it cannot beat `known`."""
    total, num_ranks = float(descending.sum()), problem.num_ranks
    fewest_bins = max(knapsack.fewest_bins(num_giants) for knapsack in knapsacks)
    fewest_slots = max(-(-fewest_bins // num_ranks), -(-num_giants // per_slot))
    pigeonhole = float(descending[num_giants - 1]) * -(-num_giants // num_ranks)
    giants = descending[:num_giants][::-1]
    come_in_pairs = per_slot == 2 * num_ranks and num_giants <= MOST_PAIRED_GIANTS
    folds = _dearest_of_pairs(giants) if come_in_pairs else None
    lowest = np.inf
    for num_slots in range(fewest_slots, num_giants + 1):
        firsts = np.minimum(np.arange(num_slots) * per_slot, num_giants - 1)
        giants_time = max(float(descending[firsts].sum()), pigeonhole)
        if giants_time >= lowest:
            break
        if folds is not None:
            giants_time = max(giants_time, _paired_time(giants, folds, num_slots, num_ranks))
        capacity = num_slots * num_ranks
        most_cost = min(knapsack.most_cost(capacity) for knapsack in knapsacks)
        bound = max(giants_time, giants_time + (total - most_cost) / num_ranks)
        lowest = min(lowest, bound)
        if lowest <= known:
            break
    return lowest


def _dearest_of_pairs(ascending: np.ndarray) -> np.ndarray:
    """For each m the dearest of m pairs of the 2 m cheapest, at least, float64 [size / 2 + 1]."""
    folded = [0.0]
    for num_pairs in range(1, len(ascending) // 2 + 1):
        dearer = ascending[num_pairs : 2 * num_pairs][::-1]
        folded.append(float((ascending[:num_pairs] + dearer).max()))
    return np.array(folded)


def _paired_time(giants: np.ndarray, folds: np.ndarray, num_slots: int, num_ranks: int) -> float:
    """Least time of `num_slots` slots with all `giants`, ascending, at most two in a bin."""
    num_giants = len(giants)
    taken = np.arange(num_slots) * num_ranks
    pairs = np.arange(max(0, num_giants - num_slots * num_ranks), num_giants // 2 + 1)[:, None]
    left = np.maximum(num_giants - taken - np.minimum(taken, pairs), 1)
    tops = np.maximum(giants[left - 1], folds[np.maximum(pairs - taken, 0)])
    return float(tops.sum(axis=1).min())


def _giant_counts(problem: StepProblem) -> list[int]:
    """Numbers of giants worth a try; any subset of 1..n gives a bound.

    The first ones; those at which one giant per bin opens another slot; those at which the samples
    longer than a half, a third ... of the cap end; and a geometric tail.
    """
    num_samples, num_ranks = problem.num_samples, problem.num_ranks
    counts = set(range(1, min(num_samples, NUM_GIANT_COUNTS) + 1))
    counts.update(range(num_ranks + 1, num_samples + 1, num_ranks)[:NUM_GIANT_COUNTS])
    counts.update(int((problem.lengths > problem.token_cap / k).sum()) for k in range(2, 6))
    size = NUM_GIANT_COUNTS
    while size < num_samples:
        size += size // 8
        counts.add(min(num_samples, size))
    return sorted(counts - {0})


def _most_giants_per_bin(problem: StepProblem, lengths: np.ndarray) -> int:
    """How many of the giants with these `lengths` one bin can hold, taking the shortest first."""
    filled = np.cumsum(np.sort(lengths))
    by_tokens = int(np.searchsorted(filled, problem.token_cap, side="right"))
    return max(1, min(by_tokens, problem.sample_cap))


def _weights(problem: StepProblem) -> list[np.ndarray]:
    """Dual feasible weights of the samples, each float64 [samples]."""
    if problem.samples_per_bin is not None:
        exact = [np.full(problem.num_samples, 1.0 / problem.samples_per_bin)]
        return exact + ([] if problem.max_tokens is None else [problem.lengths / problem.token_cap])
    lengths, cap = problem.lengths, problem.token_cap
    weights = [lengths / cap]
    weights += [_rounded_weight(lengths, cap, k) for k in range(1, NUM_ROUNDED_WEIGHTS + 1)]
    weights += [_cut_weight(lengths, cap, cut * cap // 16) for cut in range(1, NUM_CUT_WEIGHTS + 1)]
    if problem.max_samples is not None:
        weights.append(np.full(problem.num_samples, 1.0 / problem.max_samples))
    return weights + [(first + second) / 2 for first, second in combinations(weights, 2)]


def _rounded_weight(lengths: np.ndarray, cap: int, k: int) -> np.ndarray:
    scaled = lengths * (k + 1)
    return np.where(scaled % cap == 0, lengths / cap, (scaled // cap) / k)


def _cut_weight(lengths: np.ndarray, cap: int, cut: int) -> np.ndarray:
    return np.where(lengths > cap - cut, 1.0, np.where(lengths < cut, 0.0, lengths / cap))
