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


@pytest.fixture
def quack(package):
    """quack's row kernels over torch: a loss per row, and its gradient times the row's own."""

    def forward(logits, target, ignore_index, return_lse):
        normalizer = logits.logsumexp(1)
        loss = normalizer - logits.gather(1, target.clamp(0)[:, None])[:, 0]
        return torch.where(target == ignore_index, 0.0, loss), normalizer

    def backward(logits, target, upstream, normalizer, out, ignore_index):
        of_logits = (logits - normalizer[:, None]).exp()
        of_logits[torch.arange(len(target)), target.clamp(0)] -= 1
        kept = (target != ignore_index)[:, None]
        out.copy_(torch.where(kept, of_logits * upstream[:, None], 0.0))

    package("quack.cross_entropy", cross_entropy_fwd=forward, cross_entropy_bwd_out=backward)


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


def test_quacks_answer_is_torchs_with_each_tokens_own_gradient(quack):
    same_as_torch("quack", temperature=0.5, chunk_tokens=16)


def test_quack_ignores_what_is_ignored(quack):
    targets = operands()[2]
    targets[3] = -7
    same_as_torch("quack", targets=targets, ignore_index=-7)


@pytest.mark.parametrize(
    ("how", "says"),
    [({"with_entropy": True}, "without entropy"), ({"tp_group": object()}, "not split")],
)
def test_quack_says_what_it_cannot_do(quack, how, says, monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: 1)
    with pytest.raises(ValueError, match=f"{says}.*use torch"):
        token_log_probs(*operands(), kernel="quack", **how)


def test_operands_of_two_dtypes_are_refused(liger):
    hidden, weight, targets = operands()
    with pytest.raises(ValueError, match="of one dtype"):
        token_log_probs(hidden, weight.bfloat16(), targets, kernel="liger")


def test_a_package_that_is_not_there_is_an_error_and_no_other_kernel():
    with pytest.raises(ImportError, match="quack"):
        token_log_probs(*operands(), kernel="quack")


@pytest.mark.parametrize("kernel", ["liger", "quack"])
def test_no_kernel_is_given_a_target_outside_the_vocabulary(liger, quack, kernel):
    hidden, weight, targets = operands()
    targets[0] = 30
    with pytest.raises(ValueError, match="target 30 of token 0"):
        token_log_probs(hidden, weight, targets, kernel=kernel)


@pytest.mark.parametrize("kernel", ["liger", "quack"])
def test_no_tokens_are_none_of_a_kernels_business(kernel):
    hidden, weight, _ = operands(num_tokens=0)
    found = token_log_probs(hidden, weight, torch.zeros(0, dtype=torch.int64), kernel=kernel)
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
