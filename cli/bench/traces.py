"""Seeded lengths of samples, in tokens, with the tails that agentic rollouts have."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

SHORTEST_TOKENS = 64


def lognormal(rng: np.random.Generator, num_samples: int, longest: int) -> np.ndarray:
    """Median 12,000 tokens; one in forty is cut at 128K."""
    return _whole(rng.lognormal(math.log(12_000), 1.2, num_samples), longest)


def zipf(rng: np.random.Generator, num_samples: int, longest: int) -> np.ndarray:
    """Most samples short, a few of any length."""
    return _whole(256.0 * rng.zipf(1.6, num_samples), longest)


def bimodal(rng: np.random.Generator, num_samples: int, longest: int) -> np.ndarray:
    """About one in seven takes 70 % of the longest, the others 3,000 tokens."""
    is_long = rng.random(num_samples) < 0.15
    long = rng.normal(0.7 * longest, 0.06 * longest, num_samples)
    return _whole(np.where(is_long, long, rng.normal(3_000, 800, num_samples)), longest)


def one_giant(rng: np.random.Generator, num_samples: int, longest: int) -> np.ndarray:
    """One sample as long as can be among many of 3,000 tokens."""
    lengths = rng.normal(3_000, 500, num_samples)
    lengths[rng.integers(num_samples)] = longest
    return _whole(lengths, longest)


TRACES: dict[str, Callable[[np.random.Generator, int, int], np.ndarray]] = {
    "lognormal": lognormal,
    "zipf": zipf,
    "bimodal": bimodal,
    "one giant": one_giant,
}


def _whole(lengths: np.ndarray, longest: int) -> np.ndarray:
    return np.clip(lengths, SHORTEST_TOKENS, longest).astype(np.int64)
