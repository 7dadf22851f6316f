"""Miles's function for log-probabilities, given what stands for logits."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from miles_periodic.compat.bindings import log_probs
from miles_periodic.compat.deferred_logits import DeferredLogits
from miles_periodic.hooks import PeriodicError
from miles_periodic.hooks.manager import build_manager
from miles_periodic.hooks.values import OutputHead
from miles_periodic.plugins.fused_linear_cross_entropy.feature import FusedLinearCrossEntropy

#: Eight positions of one row; two samples of five and three tokens.
TOKENS = [torch.tensor([1, 2, 3, 4, 5]), torch.tensor([6, 7, 8])]
TOTALS = [5, 3]


def get_responses(logits, *, args, unconcat_tokens, total_lengths, response_lengths, max_seq_lens):
    """As Miles slices packed samples: the row before a token predicts it."""
    rows = logits[0].div(args.rollout_temperature)
    end = 0
    for tokens, total, response in zip(
        unconcat_tokens, total_lengths, response_lengths, strict=True
    ):
        end += total
        yield rows[end - response - 1 : end - 1], tokens[-response:]


def get_log_probs_and_entropy(
    logits,
    *,
    args,
    unconcat_tokens,
    total_lengths,
    response_lengths,
    with_entropy=False,
    entropy_requires_grad=True,
    non_loss_data=True,
    max_seq_lens=None,
):
    """Miles's own, which is never to be reached."""
    raise AssertionError


@pytest.fixture(autouse=True)
def miles(monkeypatch):
    module = ModuleType("losses_of_miles")
    module.get_responses = get_responses
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(get_log_probs_and_entropy, "__module__", module.__name__)
    made = build_manager([FusedLinearCrossEntropy()])
    monkeypatch.setattr(log_probs, "manager", lambda: made)
    return module


@pytest.fixture
def deferred():
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(8, 4, generator=generator).requires_grad_()
    weight = torch.randn(9, 4, generator=generator).requires_grad_()
    return DeferredLogits(OutputHead(hidden, weight), 8, 1).transpose(0, 1)


def computed(logits, response_lengths=(2, 1), temperature=1.0, **others):
    asked = {
        "args": SimpleNamespace(rollout_temperature=temperature, qkv_format="thd"),
        "unconcat_tokens": TOKENS,
        "total_lengths": TOTALS,
        "response_lengths": list(response_lengths),
        **others,
    }
    return log_probs.compute(get_log_probs_and_entropy, None, (logits,), asked)


def rows_of(deferred, temperature=1.0):
    head = deferred.head
    return torch.log_softmax(head.hidden @ head.weight.T / temperature, -1)


def test_each_sample_has_the_log_probabilities_of_its_responses_tokens(deferred):
    first, second = computed(deferred)["log_probs"]
    rows = rows_of(deferred)
    torch.testing.assert_close(first, torch.stack([rows[2, 4], rows[3, 5]]))
    torch.testing.assert_close(second, rows[6:7, 8])


def test_the_temperature_divides_the_logits_and_not_the_positions(deferred):
    _, second = computed(deferred, temperature=0.25)["log_probs"]
    torch.testing.assert_close(second, rows_of(deferred, 0.25)[6:7, 8])


def test_entropies_come_where_they_are_asked_for(deferred):
    assert set(computed(deferred)) == {"log_probs"}
    rows = rows_of(deferred)
    _, entropy = computed(deferred, with_entropy=True)["entropy"]
    torch.testing.assert_close(entropy, -(rows.exp() * rows).sum(1)[6:7])


def test_an_entropy_that_is_only_observed_has_no_gradient(deferred):
    trained = computed(deferred, with_entropy=True)["entropy"]
    observed = computed(deferred, with_entropy=True, entropy_requires_grad=False)["entropy"]
    assert trained[0].requires_grad and not observed[0].requires_grad


def test_a_sample_without_a_response_has_no_values_and_shifts_nobody_elses(deferred):
    empty, second = computed(deferred, response_lengths=(0, 1))["log_probs"]
    assert empty.shape == (0,)
    torch.testing.assert_close(second, rows_of(deferred)[6:7, 8])


def test_a_model_that_made_logits_is_an_error_with_their_shape():
    with pytest.raises(PeriodicError, match=r"Tensor \(1, 8, 9\)") as raised:
        computed(torch.zeros(1, 8, 9))
    assert raised.value.parts["remedy"].startswith("Train a model that is a GPTModel")


def test_more_positions_than_can_be_counted_are_refused(deferred, monkeypatch):
    monkeypatch.setattr(log_probs, "_LARGEST_POSITION", 7)
    with pytest.raises(PeriodicError, match="--max-tokens-per-gpu"):
        computed(deferred)
