"""Miles's own export, in the trainer's ranks, with fast-resharding in."""

import pytest
from miles_export import CHANGED, LIMIT_BYTES


@pytest.fixture(scope="module")
def ranks(megatron_ranks):
    """What both ranks of the wheel's trainer saw."""
    return megatron_ranks("0.16.0rc0", "miles_save.py")[2]


def rounds(ranks, number):
    return [rank["rounds"][number] for rank in ranks]


def test_every_rank_goes_through_the_binding(ranks):
    assert [rank["consulted"]["checkpoint/export"] for rank in ranks] == [3, 3]


def test_no_rank_gets_the_memory_that_the_model_takes(ranks):
    for each in (*rounds(ranks, 0), *rounds(ranks, 1)):
        assert each["bytes"] > 2.5 * LIMIT_BYTES
        assert not each["could_hold"]


def test_an_export_is_there_for_every_rank_when_its_save_returns(ranks):
    first, second = (each["norm"] for each in rounds(ranks, 0))
    assert first == second and len(set(first)) > 1


def test_a_rollout_that_is_saved_again_is_exported_again(ranks):
    assert all(set(each["norm"]) == {CHANGED} for each in rounds(ranks, 1))


def test_an_export_that_fails_ends_every_rank_with_the_same_words(ranks):
    assert "config.json cannot be read" in ranks[0]["error"]
    assert ranks[1]["error"] == ranks[0]["error"]
