"""Other packages' kernels: how they are called, and what becomes of a wrong answer."""

import sys
from types import ModuleType

import pytest
import torch

from miles_periodic.plugins.fused_linear_cross_entropy import kernels, token_log_probs
from miles_periodic.plugins.fused_linear_cross_entropy.chunked import Projection


def operands(num_tokens=40, vocabulary=30):
    generator = torch.Generator().manual_seed(4)
    hidden = torch.randn(num_tokens, 8, generator=generator).requires_grad_()
    weight = torch.randn(vocabulary, 8, generator=generator).requires_grad_()
    return hidden, weight, torch.randint(vocabulary, (num_tokens,), generator=generator)


@pytest.fixture
def package(monkeypatch):
    """`package("name.of.module", part=…)` stands for a package that is not installed here."""

    def install(name, **parts):
        path = name.split(".")
        for end in range(1, len(path) + 1):
            part = ".".join(path[:end])
            monkeypatch.setitem(sys.modules, part, ModuleType(part))
        vars(sys.modules[name]).update(parts)

    return install


@pytest.fixture
def liger(package):
    """liger-kernel's interface over torch; what it was called with is in `called`."""
    called = {}

    class OneRank:
        @staticmethod
        def apply(hidden, weight, target, temperature, ignore_index, tiles, return_entropy):
            called.update(temperature=temperature, ignore_index=ignore_index)
            rows = torch.log_softmax(hidden @ weight.T / temperature, -1)
            losses = -rows.gather(1, target.clamp(0)[:, None])[:, 0]
            losses = torch.where(target == ignore_index, 0.0, losses)
            entropy = -(rows.exp() * rows).sum(1)
            return (losses, entropy) if return_entropy else losses

    package(
        "liger_kernel.ops.fused_linear_scaled_cross_entropy",
        LigerFusedLinearScaledCrossEntropyFunction=OneRank,
        LigerFusedLinearScaledCrossEntropyTPFunction=None,
    )
    return called


def same_as_torch(kernel, targets=None, ignore_index=None, **how):
    hidden, weight, given = operands()
    given = given if targets is None else targets
    weights = torch.linspace(-1, 2, len(given))
    answers = []
    for name in ("torch", kernel):
        found = token_log_probs(
            hidden, weight, given, ignore_index=ignore_index, kernel=name, **how
        )
        answers.append((found, *torch.autograd.grad((found * weights).sum(), (hidden, weight))))
    torch.testing.assert_close(answers[0], answers[1], rtol=1e-4, atol=1e-4)


def test_ligers_answer_is_torchs(liger):
    same_as_torch("liger", temperature=0.5, logit_scale=2.0)
    assert liger == {"temperature": 0.25, "ignore_index": -100}


def test_ligers_entropy_comes_along(liger):
    found = token_log_probs(*operands(), kernel="liger", with_entropy=True)
    expected = token_log_probs(*operands(), with_entropy=True)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_operands_of_two_dtypes_are_refused(liger):
    hidden, weight, targets = operands()
    with pytest.raises(ValueError, match="of one dtype"):
        token_log_probs(hidden, weight.bfloat16(), targets, kernel="liger")


def test_a_package_that_is_not_there_is_an_error_and_no_other_kernel():
    with pytest.raises(ImportError, match="liger"):
        token_log_probs(*operands(), kernel="liger")


def test_no_kernel_is_given_a_target_outside_the_vocabulary(liger):
    hidden, weight, targets = operands()
    targets[0] = 30
    with pytest.raises(ValueError, match="target 30 of token 0"):
        token_log_probs(hidden, weight, targets, kernel="liger")


def test_no_tokens_are_none_of_a_kernels_business():
    hidden, weight, _ = operands(num_tokens=0)
    found = token_log_probs(hidden, weight, torch.zeros(0, dtype=torch.int64), kernel="liger")
    assert found.shape == (0,)


def answering(change):
    """A kernel that changes torch's answer."""

    def kernel(hidden, weight, targets, how, with_entropy):
        log_probs, entropy = kernels.chunked(hidden, weight, targets, how, with_entropy)
        return change(log_probs), entropy

    return kernels.checked(kernel)


def put_in(at, value):
    def change(log_probs):
        log_probs = log_probs.clone()
        log_probs[at] = value
        return log_probs

    return change


def test_beside_a_kernel_any_target_is_taken_as_without_it(liger):
    targets = operands()[2]
    targets[3], targets[7] = -100, 30
    same_as_torch("liger", targets=targets, any_target=True)


def test_an_entropy_stays_with_its_token_where_some_targets_are_outside(liger):
    hidden, weight, targets = operands()
    targets[3] = -100
    how = {"any_target": True, "with_entropy": True}
    found = token_log_probs(hidden, weight, targets, kernel="liger", **how)
    expected = token_log_probs(hidden, weight, targets, **how)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_rounding_above_0_becomes_0_and_keeps_its_gradient():
    hidden, weight, _ = operands(num_tokens=4, vocabulary=1)
    targets = torch.zeros(4, dtype=torch.int64)
    rounded = answering(lambda log_probs: log_probs * 2 + 0.004)
    found, _ = rounded(hidden, weight, targets, Projection(), False)
    assert found.tolist() == [0.0] * 4
    found = kernels.AtMostZero.apply(raised := torch.full((3,), 1e-3, requires_grad=True))
    found.backward(torch.tensor([1.0, 2.0, 3.0]))
    assert found.tolist() == [0.0] * 3 and raised.grad.tolist() == [1.0, 2.0, 3.0]


def test_an_answer_above_0_is_an_error_wherever_it_stands():
    with pytest.raises(ArithmeticError, match="the largest log-probability is 123"):
        answering(put_in(1, 123.0))(*operands(), Projection(), False)


def test_an_answer_that_is_far_from_torchs_is_an_error():
    with pytest.raises(ArithmeticError, match="further than rounding"):
        answering(lambda log_probs: log_probs - 3)(*operands(), Projection(), False)


def test_the_rounding_of_half_precision_is_no_error():
    rounded = answering(lambda log_probs: log_probs.bfloat16().float())
    assert len(rounded(*operands(), Projection(), False)[0]) == 40


def test_what_is_not_a_number_in_torchs_too_is_no_error():
    hidden, weight, targets = operands()
    with torch.no_grad():
        hidden[0, 0] = float("nan")
    found, _ = answering(lambda log_probs: log_probs)(hidden, weight, targets, Projection(), False)
    assert found[0].isnan()


def test_what_is_no_number_where_torchs_is_one_is_an_error():
    with pytest.raises(ArithmeticError, match="further than rounding"):
        answering(put_in(0, float("nan")))(*operands(), Projection(), False)


def test_the_tokens_that_are_looked_at_are_spread_from_the_first_to_the_last():
    assert kernels.sample(1000, "cpu")[[0, -1]].tolist() == [0, 999]
    assert kernels.sample(3, "cpu").tolist() == [0, 1, 2]
