"""Log-probabilities and losses without logits, against torch's own of logits in FP64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_periodic.plugins.fused_linear_cross_entropy import (
    linear_cross_entropy,
    token_log_probs,
)

#: Of FP32, in units of the largest logit; rounding is all that blocks may change.
CLOSE = 2e-6


def operands(num_tokens, vocabulary, dtype=torch.float32, width=8, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(num_tokens, width, generator=generator) * scale
    weight = torch.randn(vocabulary, width, generator=generator) * scale
    targets = torch.randint(vocabulary, (num_tokens,), generator=generator)
    return hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), targets


def exact(hidden, weight, targets, scale=1.0):
    """Log-probabilities and entropies by log_softmax over whole logits, FP64."""
    rows = torch.log_softmax(hidden.double() @ weight.double().T * scale, -1)
    return rows.gather(1, targets[:, None])[:, 0], -(rows.exp() * rows).sum(1)


def gradients(values, upstream, of):
    total = sum((value.double() * each).sum() for value, each in zip(values, upstream, strict=True))
    return torch.autograd.grad(total, of)


shapes = st.fixed_dictionaries(
    {
        "num_tokens": st.integers(1, 40),
        "vocabulary": st.integers(1, 60),
        "chunk_tokens": st.integers(1, 50),
        "chunk_vocabulary": st.integers(1, 70),
        "seed": st.integers(0, 1000),
    }
)


@given(shape=shapes, temperature=st.floats(0.2, 3.0), logit_scale=st.sampled_from([1.0, 0.25]))
@settings(max_examples=60)
def test_values_and_gradients_are_those_of_whole_logits(shape, temperature, logit_scale):
    hidden, weight, targets = operands(
        shape["num_tokens"], shape["vocabulary"], torch.float64, seed=shape["seed"]
    )
    found = token_log_probs(
        hidden,
        weight,
        targets,
        temperature=temperature,
        logit_scale=logit_scale,
        chunk_tokens=shape["chunk_tokens"],
        chunk_vocabulary=shape["chunk_vocabulary"],
        with_entropy=True,
    )
    expected = exact(hidden, weight, targets, logit_scale / temperature)
    upstream = torch.randn(2, len(targets), dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        gradients(found, upstream, (hidden, weight)),
        gradients(expected, upstream, (hidden, weight)),
        rtol=1e-9,
        atol=1e-9,
    )


@given(shape=shapes, dtype=st.sampled_from([torch.float32, torch.bfloat16]))
@settings(max_examples=40)
def test_blocks_change_no_more_than_rounding(shape, dtype):
    hidden, weight, targets = operands(
        shape["num_tokens"], shape["vocabulary"], dtype, seed=shape["seed"]
    )
    whole = token_log_probs(hidden, weight, targets)
    in_blocks = token_log_probs(
        hidden,
        weight,
        targets,
        chunk_tokens=shape["chunk_tokens"],
        chunk_vocabulary=shape["chunk_vocabulary"],
    )
    peak = float((hidden.float() @ weight.float().T).detach().abs().max())
    torch.testing.assert_close(whole, in_blocks, rtol=0, atol=CLOSE * max(peak, 1.0))


@given(shape=shapes, scale=st.sampled_from([1e-3, 1.0, 30.0]))
@settings(max_examples=60)
def test_a_log_probability_is_never_above_0(shape, scale):
    hidden, weight, targets = operands(
        shape["num_tokens"], shape["vocabulary"], seed=shape["seed"], scale=scale
    )
    likeliest = (hidden @ weight.T).argmax(1)
    for wanted in (targets, likeliest):
        found = token_log_probs(
            hidden,
            weight,
            wanted,
            chunk_tokens=shape["chunk_tokens"],
            chunk_vocabulary=shape["chunk_vocabulary"],
        )
        assert float(found.detach().max()) <= 0.0


def test_gradients_pass_torchs_own_check():
    hidden, weight, targets = operands(5, 7, torch.float64, width=3)
    targets[2] = -1

    def compute(hidden, weight):
        return token_log_probs(
            hidden,
            weight,
            targets,
            ignore_index=-1,
            temperature=1.3,
            with_entropy=True,
            chunk_tokens=2,
            chunk_vocabulary=3,
        )

    assert torch.autograd.gradcheck(compute, (hidden, weight))


def test_half_precision_operands_give_fp32_values_and_gradients_in_their_own_dtype():
    hidden, weight, targets = operands(9, 20, torch.bfloat16)
    found = token_log_probs(hidden, weight, targets, chunk_tokens=4, chunk_vocabulary=6)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact(hidden, weight, targets)[0], atol=1e-5, rtol=0)
    assert [g.dtype for g in torch.autograd.grad(found.sum(), (hidden, weight))] == [
        torch.bfloat16,
        torch.bfloat16,
    ]


def test_a_gradient_of_bf16_weights_is_rounded_once_and_not_per_block():
    hidden, weight, targets = operands(400, 12, torch.bfloat16)
    found = token_log_probs(hidden, weight, targets, chunk_tokens=1)
    (of_weight,) = torch.autograd.grad(found.sum(), weight)
    whole = hidden.detach().double(), weight.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(exact(*whole, targets)[0].sum(), whole[1])
    torch.testing.assert_close(of_weight.double(), expected, rtol=2**-8, atol=1e-3)


def test_no_tokens_have_no_values_and_gradients_of_zero():
    hidden, weight, _ = operands(0, 5)
    targets = torch.zeros(0, dtype=torch.int64)
    log_probs, entropy = token_log_probs(hidden, weight, targets, with_entropy=True)
    assert log_probs.shape == entropy.shape == (0,)
    of_hidden, of_weight = torch.autograd.grad(log_probs.sum(), (hidden, weight))
    assert of_hidden.shape == (0, 8) and not of_weight.any()


def test_one_token_is_enough():
    hidden, weight, targets = operands(1, 50)
    found = token_log_probs(hidden, weight, targets)
    torch.testing.assert_close(found.double(), exact(hidden, weight, targets)[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("target", [-1, 20, -100])
def test_a_target_outside_the_vocabulary_is_refused_with_its_place(target):
    hidden, weight, targets = operands(4, 20)
    targets[2] = target
    with pytest.raises(ValueError, match=f"target {target} of token 2 .* pass ignore_index"):
        token_log_probs(hidden, weight, targets)


@pytest.mark.parametrize("target", [-1, 20, -100])
def test_any_target_is_taken_as_if_its_logit_were_a_constant_and_the_largest(target):
    hidden, weight, targets = operands(4, 20)
    targets[2] = target
    found = token_log_probs(hidden, weight, targets, any_target=True, chunk_vocabulary=7)
    logits = hidden.double() @ weight.double().T
    logit = logits.gather(1, targets.clamp(0, 19)[:, None])[:, 0]
    logit = torch.where(targets == target, logits.detach().amax(1), logit)
    expected = logit - logits.logsumexp(1)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=0)
    upstream = torch.linspace(1, 2, 4)
    ours = torch.autograd.grad((found * upstream).sum(), (hidden, weight))
    theirs = torch.autograd.grad((expected * upstream).sum(), (hidden, weight))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_an_ignored_token_has_value_0_and_no_gradient():
    hidden, weight, targets = operands(4, 20)
    targets[1] = -100
    log_probs, entropy = token_log_probs(
        hidden, weight, targets, ignore_index=-100, with_entropy=True
    )
    assert log_probs[1] == entropy[1] == 0
    (of_hidden,) = torch.autograd.grad(log_probs.sum() + entropy.sum(), hidden)
    assert not of_hidden[1].any() and of_hidden[0].any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_goes_through_to_its_own_token_alone(bad):
    hidden, weight, targets = operands(6, 20)
    with torch.no_grad():
        hidden[3, 0] = bad
    found = token_log_probs(hidden, weight, targets, chunk_tokens=2, chunk_vocabulary=7)
    assert found[3].isnan() and found[torch.arange(6) != 3].isfinite().all()
    (of_weight,) = torch.autograd.grad(found.sum(), weight)
    assert of_weight.isnan().any()


def test_a_block_of_a_vocabulary_that_cannot_be_sampled_hides_nothing():
    weight = torch.tensor([[-torch.inf], [-torch.inf], [1.0], [2.0]])
    hidden, targets = torch.ones(2, 1), torch.tensor([2, 0])
    found = token_log_probs(hidden, weight, targets, chunk_vocabulary=2)
    expected = torch.log_softmax(hidden @ weight.T, -1).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(found, expected)
    assert found[1] == -torch.inf


def test_nothing_is_kept_for_backward_where_nothing_is_trained():
    hidden, weight, targets = operands(4, 20)
    with torch.no_grad():
        assert token_log_probs(hidden, weight, targets).grad_fn is None


def test_a_frozen_weight_costs_no_gradient():
    hidden, weight, targets = operands(4, 20)
    found = token_log_probs(hidden, weight.detach(), targets)
    expected = exact(hidden, weight.detach(), targets)[0]
    torch.testing.assert_close(
        torch.autograd.grad(found.sum(), hidden),
        torch.autograd.grad(expected.sum(), hidden),
        atol=1e-5,
        rtol=1e-5,
    )


def test_autocast_rounds_nothing():
    hidden, weight, targets = operands(5, 20)
    plain = token_log_probs(hidden, weight, targets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(token_log_probs(hidden, weight, targets), plain)


def test_the_weights_of_tokens_enter_the_loss_and_every_gradient():
    hidden, weight, targets = operands(6, 20, torch.float64)
    weights = torch.tensor([1.0, 0.0, 2.5, 0.0, -1.0, 0.25], dtype=torch.float64)
    of = {"token_weights": weights, "chunk_tokens": 4}
    expected = -(exact(hidden, weight, targets)[0] * weights)
    for reduction, value in (("sum", expected.sum()), ("mean", expected.sum() / weights.sum())):
        found = linear_cross_entropy(hidden, weight, targets, reduction=reduction, **of)
        torch.testing.assert_close(found, value)
        torch.testing.assert_close(
            torch.autograd.grad(found, (hidden, weight)),
            torch.autograd.grad(value, (hidden, weight), retain_graph=True),
        )
    none = linear_cross_entropy(hidden, weight, targets, reduction="none", **of)
    torch.testing.assert_close(none, expected)


def test_a_mean_is_over_the_tokens_that_are_not_ignored():
    hidden, weight, targets = operands(6, 20, torch.float64)
    targets[1] = targets[4] = -100
    found = linear_cross_entropy(hidden, weight, targets)
    kept = targets != -100
    expected = -exact(hidden[kept], weight, targets[kept])[0].mean()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hidden": torch.zeros(4, 7)}, "T and H must agree"),
        ({"hidden": torch.zeros(3, 8)}, "T and H must agree"),
        ({"hidden": torch.zeros(1, 4, 8)}, r"\(T, H\), \(V, H\) and \(T,\) are taken"),
        ({"weight": torch.zeros(0, 8)}, "V be at least 1"),
        ({"weight": torch.zeros(9, 8, dtype=torch.int64)}, "floating is taken"),
        ({"targets": torch.zeros(4, dtype=torch.int32)}, "torch.int64 is taken"),
        ({"temperature": 0.0}, "a finite number above 0 is taken"),
        ({"temperature": float("nan")}, "a finite number above 0 is taken"),
        ({"logit_scale": 0.0}, "a finite number that is not 0 is taken"),
        ({"chunk_tokens": 0}, "at least 1 is taken"),
        ({"kernel": "cuda"}, "one of torch, liger is taken"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_does(change, says):
    given = {
        "hidden": torch.zeros(4, 8),
        "weight": torch.zeros(9, 8),
        "targets": torch.zeros(4, dtype=torch.int64),
    }
    with pytest.raises(ValueError, match=says):
        token_log_probs(**given | change)


def test_a_loss_refuses_a_reduction_or_weights_that_do_not_fit():
    hidden, weight, targets = operands(4, 9)
    with pytest.raises(ValueError, match="none, sum or mean is taken"):
        linear_cross_entropy(hidden, weight, targets, reduction="average")
    with pytest.raises(ValueError, match=r"\(4,\) is taken"):
        linear_cross_entropy(hidden, weight, targets, token_weights=torch.ones(4, 1))
