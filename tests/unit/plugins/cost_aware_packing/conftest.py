"""Seeded traces that several test modules pack."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

MAX_TOKENS = 131072


@pytest.fixture
def lognormal_trace() -> Callable[[int, int], tuple[np.ndarray, np.ndarray]]:
    """(samples, seed) to lengths of a long-tailed trace, up to 128K tokens, and their costs."""

    def make(num_samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        drawn = np.random.default_rng(seed).lognormal(math.log(12000), 1.2, num_samples)
        lengths = np.clip(drawn, 64, MAX_TOKENS).astype(np.int64)
        return lengths, lengths * (1.0 + lengths / 65536)

    return make
