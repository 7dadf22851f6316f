"""A ChunkedAdam takes an optimizer's groups and flags, and loads before it ever stepped."""

import pytest
import torch

from miles_periodic.compat.cpu.fused_adam import FusedAdam
from miles_periodic.hooks import PeriodicError
from miles_periodic.plugins.chunked_optimizer_offload import StepFailed
from miles_periodic.plugins.chunked_optimizer_offload.settings import (
    ChunkedOptimizerOffloadSettings,
)
from miles_periodic.plugins.chunked_optimizer_offload.take_over import in_place_of


def parameters():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(n, generator=generator) for n in (40, 3, 900)]


def groups(params):
    return [{"params": params[:2], "lr": 0.01, "wd_mult": 0.0}, {"params": params[2:], "lr": 0.1}]


def taken(kind, params, **settings):
    return in_place_of(kind(groups(params)), ChunkedOptimizerOffloadSettings(**settings))


def stepped(optimizer, params, num_steps=3):
    for number in range(num_steps):
        for param in params:
            generator = torch.Generator().manual_seed(number + param.numel())
            param.grad = torch.randn(param.shape, generator=generator)
        optimizer.step()


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam, FusedAdam])
def test_it_steps_as_the_optimizer_whose_place_it_took(kind):
    stock, ours = parameters(), parameters()
    native, chunked = kind(groups(stock)), taken(kind, ours)
    stepped(native, stock)
    stepped(chunked, ours)
    for one, other in zip(stock, ours, strict=True):
        assert torch.equal(one, chunked.master(other))
        for name in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(native.state[one][name], chunked.state[other][name])


def test_groups_keep_their_identity_and_what_others_wrote_in_them():
    params = parameters()
    optimizer = FusedAdam(groups(params))
    before = list(optimizer.param_groups)
    after = in_place_of(optimizer, ChunkedOptimizerOffloadSettings()).param_groups
    assert all(one is other for one, other in zip(before, after, strict=True))
    assert after[0]["wd_mult"] == 0.0


def test_state_is_there_before_the_first_step():
    params = parameters()
    chunked = taken(FusedAdam, params)
    assert all(set(chunked.state[p]) == {"exp_avg", "exp_avg_sq"} for p in params)


def test_an_optimizer_that_has_stepped_is_refused():
    params = parameters()
    optimizer = torch.optim.AdamW(params)
    stepped(optimizer, params, 1)
    with pytest.raises(PeriodicError, match="has not stepped yet"):
        in_place_of(optimizer, ChunkedOptimizerOffloadSettings())


def test_an_optimizer_that_is_not_adam_is_refused_by_its_class():
    with pytest.raises(PeriodicError, match="Train with --optimizer adam"):
        in_place_of(torch.optim.SGD(parameters(), lr=0.1), ChunkedOptimizerOffloadSettings())


def test_masters_of_another_dtype_are_refused_and_stay():
    params = [torch.zeros(4, dtype=torch.bfloat16)]
    with pytest.raises(PeriodicError, match=r"torch\.float32"):
        in_place_of(torch.optim.AdamW(params), ChunkedOptimizerOffloadSettings())
    assert params[0].eq(0).all()


def test_adam_of_a_torch_whose_groups_do_not_say_how_weights_decay_is_refused():
    """Stepped as AdamW, its weights would decay another way without a word."""
    optimizer = torch.optim.Adam(groups(parameters()), weight_decay=0.1)
    for group in optimizer.param_groups:
        del group["decoupled_weight_decay"]
    with pytest.raises(PeriodicError, match="how weights decay"):
        in_place_of(optimizer, ChunkedOptimizerOffloadSettings())


def test_after_half_a_step_of_a_trainer_only_a_new_start_is_advised():
    params = parameters()
    chunked = taken(FusedAdam, params)
    chunked.on_stepped = lambda pieces: 1 / 0
    with pytest.raises(StepFailed, match=r"Start again from the last checkpoint\.$"):
        stepped(chunked, params)
    with pytest.raises(RuntimeError, match=r"Start again from the last checkpoint\.$"):
        chunked.state_dict()
