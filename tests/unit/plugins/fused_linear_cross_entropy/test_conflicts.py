"""Command lines of Miles that need logits."""

import pytest

from miles_periodic.hooks import PeriodicError
from miles_periodic.plugins.fused_linear_cross_entropy.conflicts import CONFLICTS
from miles_periodic.plugins.fused_linear_cross_entropy.feature import FusedLinearCrossEntropy

refuse_conflicts = FusedLinearCrossEntropy().complete_arguments

REFUSED = {
    "train_backend": "fsdp",
    "true_on_policy_mode": True,
    "enable_mtp_training": True,
    "mtp_num_layers": 1,
    "multimodal_keys": {"image": "images"},
    "allgather_cp": True,
    "custom_loss_function_path": "my.loss",
    "overlap_moe_expert_parallel_comm": True,
    "defer_embedding_wgrad_compute": True,
    "config_logger_dir": "logs",
    "rollout_temperature": 0,
}
TAKEN = {
    "train_backend": "megatron",
    "true_on_policy_mode": False,
    "enable_mtp_training": False,
    "mtp_num_layers": None,
    "multimodal_keys": None,
    "allgather_cp": False,
    "custom_loss_function_path": None,
    "overlap_moe_expert_parallel_comm": False,
    "defer_embedding_wgrad_compute": False,
    "config_logger_dir": "",
    "rollout_temperature": 0.7,
}


def test_every_conflict_has_a_case_here():
    assert {c.argument for c in CONFLICTS} == set(REFUSED) == set(TAKEN)


@pytest.mark.parametrize("argument", REFUSED)
def test_what_needs_logits_is_refused_by_its_option(argument):
    option = "--" + argument.replace("_", "-")
    with pytest.raises(PeriodicError, match=f"(Leave|Give) {option} ") as raised:
        refuse_conflicts({**TAKEN, argument: REFUSED[argument]})
    assert repr(REFUSED[argument]) == raised.value.parts["found"]


def test_a_plain_command_line_is_taken():
    assert refuse_conflicts(TAKEN) is None


def test_a_miles_that_has_fewer_arguments_is_taken():
    assert refuse_conflicts({}) is None
