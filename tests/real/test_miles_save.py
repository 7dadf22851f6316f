"""Miles's own `save`, in the trainer's process, with chunked-checkpoint-staging in."""

import pytest
from bound_ranks import STAGING_BYTES

BINDINGS = {"checkpoint/save-of-base", "checkpoint/host-tensors", "checkpoint/waves"}


@pytest.fixture(scope="module")
def saved(megatron_ranks):
    """What the one rank of the wheel's trainer saw."""
    (facts,) = megatron_ranks("0.16.0rc0", "miles_save.py", worlds=(1,))[1]
    return facts


def test_the_save_of_miles_goes_through_every_binding_once(saved):
    assert saved["called"] == dict.fromkeys(BINDINGS, 1)


def test_what_megatron_loads_is_what_the_trainer_held_when_miles_saved(saved):
    assert saved["changed"] > 0 and saved["compared"] > 20
    assert saved["unequal"] == []


def test_no_more_than_the_bound_was_held_of_a_larger_state(saved):
    assert 0 < saved["peak_bytes"] <= STAGING_BYTES < saved["copied_bytes"] / 3


def test_the_checkpoint_is_named_as_the_latest_after_its_last_file(saved):
    assert saved["latest"] == "3" and saved["files"] > 2
