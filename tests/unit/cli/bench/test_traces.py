from __future__ import annotations

import numpy as np
import pytest

from miles_periodic.cli.bench.traces import SHORTEST_TOKENS, TRACES


@pytest.mark.parametrize("name", sorted(TRACES))
def test_lengths_stay_between_the_shortest_and_the_longest(name):
    lengths = TRACES[name](np.random.default_rng(0), 500, 4096)
    assert lengths.dtype == np.int64 and len(lengths) == 500
    assert lengths.min() >= SHORTEST_TOKENS and lengths.max() <= 4096


@pytest.mark.parametrize("name", sorted(TRACES))
def test_a_seed_gives_the_same_lengths_again(name):
    first, again = (TRACES[name](np.random.default_rng(7), 50, 131072) for _ in range(2))
    assert first.tolist() == again.tolist()


def test_one_giant_is_as_long_as_can_be():
    lengths = TRACES["one giant"](np.random.default_rng(0), 50, 131072)
    assert (lengths == 131072).sum() == 1
