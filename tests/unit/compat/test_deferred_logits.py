"""What stands for logits, and what it does not answer."""

import pytest
import torch

from miles_periodic.compat.deferred_logits import DeferredLogits
from miles_periodic.hooks.values import OutputHead

#: Three positions of two sequences, four wide, of five tokens.
HIDDEN = torch.arange(24.0).view(6, 4)


@pytest.fixture
def deferred():
    return DeferredLogits(OutputHead(HIDDEN, torch.ones(5, 4)), 3, 2)


def test_turned_to_sequences_its_rows_are_in_the_order_of_the_logits(deferred):
    turned = deferred.transpose(0, 1)
    assert (deferred.leading_shape, turned.leading_shape) == ((3, 2), (2, 3))
    assert torch.equal(deferred.flat_head().hidden, HIDDEN)
    logits = (HIDDEN @ torch.ones(5, 4).T).view(3, 2, 5).transpose(0, 1).flatten(0, 1)
    assert torch.equal(turned.flat_head().hidden @ torch.ones(5, 4).T, logits)


def test_turned_back_it_is_what_it_was(deferred):
    assert deferred.transpose(0, 1).transpose(1, 0).leading_shape == (3, 2)
    assert deferred.contiguous() is deferred


def test_the_vocabulary_cannot_be_turned(deferred):
    with pytest.raises(TypeError, match="cannot exchange dimensions 1 and 2"):
        deferred.transpose(1, 2)


def test_a_factor_becomes_the_scale_of_the_logits(deferred):
    assert (deferred * 0.5 * 3).head.logit_scale == 1.5


def test_nothing_but_a_number_multiplies_it(deferred):
    with pytest.raises(TypeError):
        deferred * torch.ones(5)


def test_its_sum_leads_to_all_that_logits_would_lead_to():
    hidden, weight = HIDDEN.clone().requires_grad_(), torch.ones(5, 4, requires_grad=True)
    (0 * DeferredLogits(OutputHead(hidden, weight), 3, 2).sum()).backward()
    assert not hidden.grad.any() and not weight.grad.any()


def test_its_sum_is_finite_where_fp16_could_not_hold_that_of_all_weights():
    head = OutputHead(HIDDEN.half(), torch.ones(50_000, 4, dtype=torch.float16))
    assert (0 * DeferredLogits(head, 3, 2).sum()).item() == 0


def test_it_says_where_it_is(deferred):
    assert deferred.device == torch.device("cpu")


@pytest.mark.parametrize("name", ["dtype", "shape", "size", "float", "__array__"])
def test_a_look_at_it_is_an_error_that_names_the_feature(deferred, name):
    with pytest.raises(AttributeError, match="take the feature out with"):
        getattr(deferred, name)


def test_torch_takes_it_for_no_tensor(deferred):
    with pytest.raises(TypeError, match="DeferredLogits"):
        torch.log_softmax(deferred, -1)
