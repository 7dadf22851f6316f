"""Explicit micro-batches under a cap, trained by the wheel's Miles and Megatron on two ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROCESS = Path(__file__).parents[1] / "lines" / "dynamic_step_process.py"
NUM_RANKS = 2
TIMEOUT_SECONDS = 600
MAX_TOKENS, NUM_SAMPLES, GLOBAL_BATCH_SIZE = 48, 32, 16


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each rank trained; a rank that waits for another one for ever fails by its time."""
    store = tmp_path_factory.mktemp("ranks") / "store"
    started = [
        subprocess.Popen(
            [sys.executable, str(PROCESS), str(rank), str(NUM_RANKS), str(store)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(NUM_RANKS)
    ]
    try:
        said = [process.communicate(timeout=TIMEOUT_SECONDS) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, errors) in zip(started, said, strict=True):
        assert process.returncode == 0, errors[-4000:]
    return [json.loads(output.splitlines()[-1]) for output, _ in said]


def test_ranks_run_the_same_number_of_micro_batches_in_each_step(ranks):
    first, second = (rank["num_microbatches"] for rank in ranks)
    assert first == second and len(first) == NUM_SAMPLES // GLOBAL_BATCH_SIZE
    assert [[len(step) for step in rank["trained"]] for rank in ranks] == [first] * NUM_RANKS


def test_each_sample_is_trained_once_and_in_its_own_step(ranks):
    for step in range(NUM_SAMPLES // GLOBAL_BATCH_SIZE):
        trained = [i for rank in ranks for one in rank["trained"][step] for i in one]
        first = step * GLOBAL_BATCH_SIZE
        assert sorted(trained) == list(range(first, first + GLOBAL_BATCH_SIZE))


def test_no_micro_batch_that_was_trained_is_over_the_cap(ranks):
    lengths = ranks[0]["lengths"]
    for one in (one for rank in ranks for step in rank["trained"] for one in step):
        assert 0 < sum(lengths[i] for i in one) <= MAX_TOKENS


def test_the_gradient_is_that_of_the_samples_one_by_one(ranks):
    assert all(rank["gradient_error"] < 1e-5 for rank in ranks)
