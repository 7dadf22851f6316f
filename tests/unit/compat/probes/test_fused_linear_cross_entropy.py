"""The probe on small trees: logits that are made where it is known, or nothing is bound."""

import textwrap

import pytest

from miles_periodic.compat.probes import PROBES
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks import Inject, Unsupported

PROBE = PROBES["fused-linear-cross-entropy"]
MODEL = """
    class GPTModel:
        def _postprocess(self, hidden_states, labels{more}):
            for layer in ():
                mtp_logits, _ = self.output_layer(mtp_hidden, weight=None)
            {makes}
            return logits
    """
MAKES = "logits, _ = self.output_layer(hidden_states, weight=None)"
LOSS = """
    def get_responses(logits, *, args):
        yield logits, args

    def get_log_probs_and_entropy({first}, *, args):
        return list({slices})

    def policy_loss_function(args, logits):
        return get_log_probs_and_entropy(logits, args=args)
    """


@pytest.fixture
def tree(tmp_path):
    def written(upstream, path, text):
        file = tmp_path / upstream / path
        file.parent.mkdir(parents=True)
        file.write_text(textwrap.dedent(text))
        return Tree.at(upstream, tmp_path)

    return written


@pytest.fixture
def megatron(tree):
    def probed(makes=MAKES, more="", path="core/models/gpt/gpt_model.py"):
        return PROBE["megatron"](tree("megatron", path, MODEL.format(makes=makes, more=more)))

    return probed


@pytest.fixture
def miles(tree):
    def probed(
        first="logits",
        slices="get_responses(logits, args=args)",
        path="backends/training_utils/loss.py",
    ):
        return PROBE["miles"](tree("miles", path, LOSS.format(first=first, slices=slices)))

    return probed


def test_a_model_that_makes_logits_is_injected_into(megatron):
    decision = megatron()
    assert isinstance(decision, Inject) and decision.bindings == ("loss/output",)
    assert "self.output_layer(hidden_states, weight=None)" in decision.evidence[0].what


def test_a_place_for_an_output_processor_is_told(megatron):
    assert "where no output_processor is given" in megatron(more=", output_processor=None").reason


def test_logits_of_multi_token_prediction_alone_are_not_the_models(megatron):
    decision = megatron(makes="logits = hidden_states")
    assert isinstance(decision, Unsupported) and decision.found == "no call of the output layer"


def test_a_tree_without_the_model_is_unsupported(megatron):
    decision = megatron(path="core/models/hybrid/hybrid_model.py")
    assert isinstance(decision, Unsupported) and decision.found == "no such method"


def test_a_miles_that_slices_logits_is_injected_into_with_who_asks(miles):
    decision = miles()
    assert isinstance(decision, Inject)
    assert decision.bindings == ("launch/arguments", "loss/log-probs", "launch/muster")
    assert decision.evidence[-1].what == "policy_loss_function asks for them"


def test_the_place_of_git_main_is_found_too(miles):
    decision = miles(path="backends/training_utils/loss_hub/logit_processors.py")
    assert "loss/main-log-probs" in decision.bindings


@pytest.mark.parametrize("change", [{"first": "hidden"}, {"slices": "hidden"}])
def test_a_function_that_takes_something_else_is_unsupported(miles, change):
    decision = miles(**change)
    assert isinstance(decision, Unsupported) and decision.found == "no logits that it slices"


def test_a_miles_without_the_function_is_unsupported(miles):
    decision = miles(path="backends/training_utils/other.py")
    assert isinstance(decision, Unsupported) and decision.found == "no such function"
