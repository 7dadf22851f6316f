"""Real Megatron-core trees train, replay and resume under gloo on the CPU."""

import pytest

#: The two ends; every tree in between trains in the tests of the features.
LABELS = ["0.16.0rc0", "0.19.2"]


@pytest.fixture(scope="module", params=LABELS)
def worlds(request, megatron_ranks):
    return request.param, megatron_ranks(request.param, "megatron_alone.py")


def test_the_tree_that_was_asked_for_is_the_one_that_runs(worlds):
    label, facts = worlds
    assert {rank["version"] for ranks in facts.values() for rank in ranks} == {label}


def test_a_trainer_learns_and_goes_on_from_its_checkpoint(worlds):
    _, facts = worlds
    for ranks in facts.values():
        assert all(rank["dense_losses"][-1] < rank["dense_losses"][0] for rank in ranks)
        assert all(rank["resumes"] for rank in ranks)


def test_experts_spread_over_the_ranks_take_the_routes_that_are_replayed(worlds):
    _, facts = worlds
    for world_size, ranks in facts.items():
        assert {rank["num_replays"] for rank in ranks} == {2}
        assert all(rank["replay_changes_the_loss"] for rank in ranks)
        assert {rank["num_moe_parts"] for rank in ranks} == {1 if world_size == 1 else 2}
