"""Real Megatron trees train with offloaded optimizer state exactly as without it."""

import pytest
from megatron_ranks import TREES

from miles_periodic.compat.matrix.called import calls


@pytest.fixture(scope="module", params=sorted(TREES))
def label(request):
    return request.param


@pytest.fixture(scope="module")
def ranks(label, megatron_ranks):
    """What every rank of a world of one and of a world of two found out, in that order."""
    worlds = megatron_ranks(label, "offloaded_training.py")
    return [rank for ranks in worlds.values() for rank in ranks]


def test_the_tree_that_was_asked_for_is_the_one_that_trains(ranks, label):
    assert {rank["version"] for rank in ranks} == {label}


def test_every_binding_is_called_in_forked_ranks_that_joined_by_the_boot_line_and_stands_on_file(
    ranks, label
):
    called = calls()["-".join(TREES[label][:2])]["tests/real/test_offloaded_training.py"]
    assert {name for rank in ranks for name in rank["called"]} == called


def test_experts_spread_over_the_ranks_take_the_routes_that_are_replayed(ranks):
    assert all(rank["replay"] == {"num_replays": 2, "changes_the_loss": True} for rank in ranks)


@pytest.mark.parametrize("kind", ["dense", "experts", "fp32"])
def test_losses_weights_masters_and_moments_are_those_of_the_native_optimizer(ranks, kind):
    for rank in ranks:
        assert rank[kind]["losses_equal"] and rank[kind]["state_equal"] and rank[kind]["learned"]


def test_they_are_those_of_torchs_adamw_where_that_is_all_there_is(ranks):
    found = ranks[0]["torch_fallback"]
    assert found["losses_equal"] and found["state_equal"] and found["learned"]


def test_every_optimizer_of_a_rank_is_offloaded_that_of_the_experts_too(ranks):
    assert [rank["experts"]["num_parts"] for rank in ranks] == [1, 2, 2]
    assert all(rank[kind]["all_offloaded"] for rank in ranks for kind in ("dense", "experts"))


def test_what_stays_on_the_device_is_the_workspace(ranks):
    for rank in ranks:
        assert rank["dense"]["all_placeholders"] and rank["experts"]["all_placeholders"]
        assert rank["dense"]["placeholders_in_forward"]
        assert rank["dense"]["num_chunks"] > 8
        assert rank["dense"]["device_bytes"] <= 48 << 10


@pytest.mark.parametrize("sharding", ["dp_reshardable", "fully_reshardable"])
@pytest.mark.parametrize("kinds", ["native -> offloaded", "offloaded -> native",
                                   "offloaded -> offloaded", "native -> native"])  # fmt: skip
def test_a_checkpoint_of_either_kind_loads_and_goes_on_bit_for_bit(ranks, kinds, sharding):
    for rank in ranks:
        assert rank["checkpoints"][f"{kinds}, {sharding}"] == {
            "loaded": True,
            "resumed": True,
            "placeholders": True,
        }


def test_a_background_writer_sees_nothing_of_the_next_step(ranks):
    assert all(rank["background"]["holds_what_was_saved"] for rank in ranks)


def test_loaded_weights_become_masters_and_masters_weights_again(ranks):
    assert all(rank["weights"] == {"reloaded": True, "rebuilt": True} for rank in ranks)


def test_masters_leave_the_device_after_a_load_and_a_step_that_fail(ranks):
    broken = ranks[0]["broken"]
    assert broken["placeholders_after_load"] and broken["placeholders_after_step"]


def test_after_a_step_that_broke_off_megatron_neither_steps_nor_saves_and_is_told_to_restart(ranks):
    broken = ranks[0]["broken"]
    for told in (broken["step"], broken["next_step"], broken["save"]):
        assert "on purpose" in told and told.endswith("Start again from the last checkpoint.")
    assert broken["written"] == []


def test_a_configuration_that_cannot_be_had_is_refused_by_name(ranks):
    for field, told in ranks[0]["refused"].items():
        assert field in told and "take the feature out with" in told
