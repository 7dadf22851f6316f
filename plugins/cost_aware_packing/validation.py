"""Refuse input that cannot be packed, with what to change."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import NoReturn

import numpy as np

from miles_periodic.plugins.cost_aware_packing.problem import StepProblem


def checked_samples(
    lengths: Sequence[int] | np.ndarray, cost: Sequence[float] | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Lengths as int64 and costs as float64, or `ValueError`."""
    lengths_array, costs = np.asarray(lengths), np.asarray(cost, dtype=np.float64)
    if lengths_array.ndim != 1 or costs.shape != lengths_array.shape:
        raise ValueError(
            f"lengths of shape {lengths_array.shape} and cost of shape {costs.shape}: "
            "pass two flat sequences with one entry per sample"
        )
    if len(lengths_array) and lengths_array.dtype.kind not in "iu":
        raise ValueError(f"lengths are {lengths_array.dtype}: pass whole numbers of tokens")
    if len(lengths_array) and lengths_array.min() < 1:
        sample = int(lengths_array.argmin())
        raise ValueError(
            f"sample {sample} has length {lengths_array[sample]}: drop it before packing, "
            "a sample needs at least 1 token"
        )
    wrong = np.flatnonzero(~(np.isfinite(costs) & (costs >= 0)))
    if len(wrong):
        raise ValueError(
            f"sample {wrong[0]} has cost {costs[wrong[0]]}: pass finite costs of 0 or more"
        )
    return lengths_array.astype(np.int64), costs


def check_at_least_one(**arguments: int) -> None:
    """Raise `ValueError` where an argument is no whole number of 1 or more."""
    for name, value in arguments.items():
        if not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name} is {value}: pass 1 or more")


def check_cap(lengths: np.ndarray, max_tokens: int) -> None:
    over = np.flatnonzero(lengths > max_tokens)
    if len(over):
        raise ValueError(
            f"sample {over[0]} has {lengths[over[0]]} tokens, over max_tokens {max_tokens} "
            f"({len(over)} such samples): raise max_tokens to {lengths.max()} or more, or cut or "
            "drop these samples before packing"
        )


def check_enough_samples(problem: StepProblem) -> None:
    needed = problem.num_ranks * problem.slot_multiple
    if problem.num_samples < needed:
        raise ValueError(
            f"{problem.num_samples} samples in a step, fewer than {needed} (data_parallel_size "
            f"{problem.num_ranks} times slot_multiple {problem.slot_multiple}): put more samples "
            "into a step, or lower data_parallel_size or slot_multiple"
        )
    if problem.fewest_slots > problem.most_slots:
        refuse_empty_bins(problem, problem.fewest_slots)


def refuse_empty_bins(problem: StepProblem, num_slots: int) -> NoReturn:
    """Raise `ValueError`: `num_slots` slots have more micro-batches than there are samples."""
    raise ValueError(
        f"{problem.num_samples} samples with {int(problem.lengths.sum())} tokens need "
        f"{num_slots} micro-batches on each of {problem.num_ranks} ranks under max_tokens "
        f"{problem.max_tokens}, which leaves some of them empty: raise max_tokens, lower "
        "data_parallel_size or slot_multiple, or put more samples into a step"
    )
