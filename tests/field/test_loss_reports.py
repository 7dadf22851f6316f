"""Losses that were wrong in other people's runs, each named after the right behaviour."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from miles_periodic.cli.bench import loss
from miles_periodic.plugins.fused_linear_cross_entropy import (
    kernels,
    linear_cross_entropy,
    token_log_probs,
)

NUM_TOKENS, WIDTH, VOCABULARY = 96, 16, 700


@pytest.fixture
def operands():
    generator = torch.Generator().manual_seed(9)
    hidden = torch.randn(NUM_TOKENS, WIDTH, generator=generator).requires_grad_()
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator).requires_grad_()
    return hidden, weight, torch.randint(VOCABULARY, (NUM_TOKENS,), generator=generator)


def whole(hidden, weight, targets):
    return torch.log_softmax(hidden @ weight.T, -1).gather(1, targets[:, None])[:, 0]


class TestALogProbabilityOf123:
    """verl#2656: a fused kernel returns log-probabilities of +123, and the reward collapses."""

    @pytest.mark.parametrize("scale", [1e-4, 1.0, 100.0])
    def test_none_is_above_0_however_sure_the_model_is(self, operands, scale):
        hidden, weight, _ = operands
        sure = (hidden @ weight.T).argmax(1)
        found = token_log_probs(hidden * scale, weight, sure, chunk_tokens=7, chunk_vocabulary=50)
        assert float(found.detach().max()) <= 0.0

    def test_a_kernel_that_gives_one_is_stopped_before_anything_is_trained_on_it(
        self, operands, monkeypatch
    ):
        def broken(hidden, weight, targets, how, with_entropy):
            answer = whole(hidden, weight, targets).clone()
            answer[50] = 123.0
            return answer, None

        monkeypatch.setitem(kernels.KERNELS, "liger", kernels.checked(broken))
        with pytest.raises(ArithmeticError, match="123"):
            token_log_probs(*operands, kernel="liger")

    def test_a_kernel_that_is_wrong_below_0_is_found_on_sampled_tokens(self, operands, monkeypatch):
        def broken(hidden, weight, targets, how, with_entropy):
            return whole(hidden, weight, targets.roll(1)), None

        monkeypatch.setitem(kernels.KERNELS, "liger", kernels.checked(broken))
        with pytest.raises(ArithmeticError, match="further than rounding"):
            token_log_probs(*operands, kernel="liger")


class TestAWeightMaskUnderReductionNone:
    """Liger#968: with reduction none and a mask, the gradient is 0 or that of other weights."""

    @pytest.mark.parametrize("chunk_tokens", [1, 10, 96])
    def test_each_tokens_weight_enters_before_tokens_are_summed(self, operands, chunk_tokens):
        hidden, weight, targets = operands
        mask = (torch.arange(NUM_TOKENS) % 3 == 0).float()
        losses = linear_cross_entropy(
            hidden, weight, targets, reduction="none", chunk_tokens=chunk_tokens
        )
        found = torch.autograd.grad((losses * mask).sum(), (hidden, weight))
        expected = torch.autograd.grad(
            -(whole(hidden, weight, targets) * mask).sum(), (hidden, weight)
        )
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert found[1].any() and not found[0][mask == 0].any()

    def test_a_mask_that_is_part_of_the_loss_gives_the_same(self, operands):
        hidden, weight, targets = operands
        mask = (torch.arange(NUM_TOKENS) % 4 != 0).float()
        inside = linear_cross_entropy(hidden, weight, targets, token_weights=mask, reduction="sum")
        outside = linear_cross_entropy(hidden, weight, targets, reduction="none") * mask
        torch.testing.assert_close(
            torch.autograd.grad(inside, weight), torch.autograd.grad(outside.sum(), weight)
        )


class Largest(TorchDispatchMode):
    """The most elements of any result."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else (result,):
            if isinstance(each, torch.Tensor):
                self.numel = max(self.numel, each.numel())
        return result


class TestAFusedLossThatTakesMoreMemory:
    """SkyRL#1841: a fused loss holds 1.7 times the logits, and runs out of memory earlier."""

    def test_nothing_of_tokens_times_vocabulary_is_held_forward_or_backward(self, operands):
        hidden, weight, targets = operands
        with Largest() as largest:
            linear_cross_entropy(
                hidden, weight, targets, chunk_tokens=32, chunk_vocabulary=64
            ).backward()
        assert largest.numel == VOCABULARY * WIDTH < NUM_TOKENS * VOCABULARY

    def test_the_peak_is_reported_beside_that_of_the_logits(self):
        shape = loss.Shape(num_tokens=64, vocabulary=512, width=8, chunk_tokens=8)
        rows = loss.measure(shape, ways=("logits by torch", "ours, torch"), repeats=1)["rows"]
        by_torch, ours = (row["peak_bytes"] for row in rows)
        assert ours < 64 * 512 * 4 <= by_torch
