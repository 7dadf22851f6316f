"""What the hooks answer."""

import subprocess
import sys

import pytest
import torch

from miles_periodic.hooks import PeriodicError
from miles_periodic.hooks.values import OutputHead
from miles_periodic.plugins.fused_linear_cross_entropy import (
    FusedLinearCrossEntropySettings,
    token_log_probs,
)
from miles_periodic.plugins.fused_linear_cross_entropy.feature import FusedLinearCrossEntropy


def head(**others):
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(6, 4, generator=generator)
    return OutputHead(hidden, torch.randn(10, 4, generator=generator), **others)


def asked(targets=None, **changes):
    return {
        "head": head(),
        "targets": torch.arange(6) if targets is None else targets,
        "temperature": 0.7,
        "any_target": False,
        "with_entropy": False,
        **changes,
    }


def test_it_is_on_only_where_it_is_asked_for():
    assert not FusedLinearCrossEntropy.default


def test_a_checkpoint_around_the_loss_is_taken_out_because_it_would_see_no_tensor():
    feature = FusedLinearCrossEntropy()
    arguments = {"recompute_loss_function": True}
    assert feature.complete_arguments(arguments) == {"recompute_loss_function": False}
    assert feature.complete_arguments({"recompute_loss_function": False}) is None


def test_a_command_line_that_needs_logits_is_refused():
    with pytest.raises(PeriodicError, match="multi-token prediction"):
        FusedLinearCrossEntropy().complete_arguments({"enable_mtp_training": True})


def test_log_probabilities_are_those_of_the_public_function():
    log_probs, entropy = FusedLinearCrossEntropy().token_log_probs(**asked())
    expected = token_log_probs(head().hidden, head().weight, torch.arange(6), temperature=0.7)
    assert torch.equal(log_probs, expected) and entropy is None


def test_the_scale_of_a_head_and_entropy_are_taken_along():
    answer = FusedLinearCrossEntropy().token_log_probs(
        **asked(head=head(logit_scale=0.5), with_entropy=True)
    )
    expected = token_log_probs(
        head().hidden, head().weight, torch.arange(6), temperature=1.4, with_entropy=True
    )
    torch.testing.assert_close(answer, expected)


def test_a_target_that_cannot_be_is_an_error_of_the_feature_with_a_remedy():
    with pytest.raises(PeriodicError, match="-fused-linear-cross-entropy"):
        FusedLinearCrossEntropy().token_log_probs(**asked(targets=torch.full((6,), 10)))


def test_a_kernel_whose_package_is_missing_is_an_error_of_the_feature():
    settings = FusedLinearCrossEntropySettings(kernel="liger")
    with pytest.raises(PeriodicError, match="kernel liger"):
        FusedLinearCrossEntropy(settings).token_log_probs(**asked())


def test_a_kernel_whose_package_is_missing_is_refused_when_arguments_are_parsed():
    settings = FusedLinearCrossEntropySettings(kernel="liger")
    with pytest.raises(PeriodicError, match="the package liger_kernel"):
        FusedLinearCrossEntropy(settings).complete_arguments({})


def test_neither_feature_nor_settings_import_torch():
    code = (
        "import sys; import miles_periodic.plugins.fused_linear_cross_entropy.feature as f;"
        "f.FusedLinearCrossEntropy().complete_arguments({});"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0
