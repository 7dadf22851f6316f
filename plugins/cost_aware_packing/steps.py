"""Which optimizer step each sample belongs to."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise

import numpy as np


def assign_steps(
    num_samples: int,
    groups: Sequence[Hashable] | None,
    steps: int | Sequence[int] | None,
) -> np.ndarray:
    """Step of each sample, counted from 0, int64 [samples].

    Which samples train together is the algorithm's decision, so it is taken from the order of the
    data and never from cost. `steps` is None (one step), the number of steps (the groups, in the
    order in which they first appear, are cut into that many runs of equal count), or the step of
    each sample. Without `groups` every sample is a group of its own.

    Raises `ValueError` where groups do not divide into the steps, a group is split over steps,
    a step has no sample, or a sequence has the wrong length.
    """
    names = list(range(num_samples)) if groups is None else list(groups)
    _check_count("groups", len(names), num_samples)
    if steps is None:
        return np.zeros(num_samples, dtype=np.int64)
    if isinstance(steps, (int, np.integer)):
        return _cut_into_runs(names, int(steps))
    _check_count("steps", len(steps), num_samples)
    given = np.asarray(steps, dtype=np.int64)
    _check_numbering(given)
    _check_groups(names, given)
    return given


def _cut_into_runs(names: list[Hashable], num_steps: int) -> np.ndarray:
    rank_of_group = {name: position for position, name in enumerate(dict.fromkeys(names))}
    num_groups = len(rank_of_group)
    if num_steps < 1 or num_groups % num_steps:
        raise ValueError(
            f"{num_groups} groups do not divide into {num_steps} steps: choose a number of steps "
            "that divides them, or pass the step of each sample"
        )
    per_step = num_groups // num_steps
    return np.asarray([rank_of_group[name] // per_step for name in names], dtype=np.int64)


def _check_count(what: str, found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(f"{found} {what} for {expected} samples: pass one entry per sample")


def _check_numbering(given: np.ndarray) -> None:
    present = np.unique(given)
    if present[0] != 0 or any(after != before + 1 for before, after in pairwise(present.tolist())):
        raise ValueError(
            f"steps are numbered {present.tolist()}: number them from 0 without gaps, "
            "each with at least one sample"
        )


def _check_groups(names: list[Hashable], given: np.ndarray) -> None:
    step_of_group: dict[Hashable, int] = {}
    for name, step in zip(names, given.tolist(), strict=True):
        if step_of_group.setdefault(name, step) != step:
            raise ValueError(
                f"group {name!r} is split over steps {step_of_group[name]} and {step}: "
                "give all its samples the same step"
            )
