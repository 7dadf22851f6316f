"""FP8 primary weights of real Megatron trees, with offloaded optimizer state exactly as without it.

Transformer Engine's Python is real, its compiled kernels are torch's on the CPU.
"""

import pytest
from megatron_ranks import TREES

from miles_periodic.compat.matrix.called import calls

#: The one in the wheel of Miles is 0.16.1 to all that matters here.
LABELS = ("0.16.1", "0.17.1", "0.18.2", "0.19.2")
TRANSFORMER_ENGINE = ("transformer-engine", "2.20.2", "3.12")
RECIPES = ("delayed", "tensorwise", "blockwise")


@pytest.fixture(scope="module", params=LABELS)
def label(request):
    return request.param


@pytest.fixture(scope="module")
def ranks(label, megatron_ranks, unpacked):
    """What every rank of a world of one and of a world of two found out, in that order."""
    worlds = megatron_ranks(label, "quantised_training.py", str(unpacked(*TRANSFORMER_ENGINE)))
    return [rank for ranks in worlds.values() for rank in ranks]


def test_the_tree_that_was_asked_for_is_the_one_that_trains(ranks, label):
    assert {rank["version"] for rank in ranks} == {label}


def test_every_binding_is_called_and_stands_on_file(ranks, label):
    called = calls()["-".join(TREES[label][:2])]["tests/real/test_quantised_training.py"]
    assert {name for rank in ranks for name in rank["called"]} == called


@pytest.mark.parametrize("recipe", RECIPES)
def test_bytes_scales_masters_and_moments_are_those_of_the_native_optimizer(ranks, recipe):
    for rank in ranks:
        assert rank[recipe]["equal"] == [True, True]
        assert rank[recipe]["num_quantised"] == rank[recipe]["num_of_stock"] == 8
        assert rank[recipe]["requantised"]
    assert all(rank["delayed"]["learned"] for rank in ranks)


@pytest.mark.parametrize("recipe", RECIPES)
def test_masters_come_to_the_device_in_waves_within_the_workspace(ranks, recipe):
    for rank in ranks:
        found = rank[recipe]
        assert found["num_waves"] > 1 and found["within_workspace"] and found["placeholders"]


def test_every_rank_forms_the_waves_also_of_weights_whose_masters_others_have(ranks):
    alone, *both = ranks
    assert alone["delayed"]["num_owned"] == 8
    assert both[0]["delayed"]["num_waves"] == both[1]["delayed"]["num_waves"]
    assert any(rank["delayed"]["num_owned"] < 8 for rank in both)


@pytest.mark.parametrize("kinds", ["native -> offloaded", "offloaded -> native",
                                   "offloaded -> offloaded", "native -> native"])  # fmt: skip
def test_a_checkpoint_of_either_kind_makes_the_same_weights_and_goes_on_bit_for_bit(ranks, kinds):
    for rank in ranks[1:]:
        assert rank["checkpoints"][kinds] == {
            "loaded": True,
            "resumed": True,
            "placeholders": True,
        }


def test_dequantised_weights_become_masters(ranks):
    assert all(rank["weights"] == {"equal": True, "rounded": True} for rank in ranks[1:])


def test_another_recipe_is_refused_by_name(ranks):
    for rank in ranks:
        assert "config.fp8_recipe" in rank["mxfp8"]
        assert "take the feature out with" in rank["mxfp8"]
