import pytest
import torch
from adam_pair import SHAPES, SMALL, gradients, parameters

from miles_periodic.plugins.chunked_optimizer_offload import (
    AdamWRule,
    ChunkedAdam,
    GroupStepRule,
    StepFailed,
)


class FusedAdamLike(torch.optim.Optimizer):
    """Counts steps in its groups and nowhere else, as FusedAdam of TE and Apex does."""

    def __init__(self, params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8):
        defaults = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state["exp_avg"] = torch.zeros_like(param)
                    state["exp_avg_sq"] = torch.zeros_like(param)
                self._step_one(param, state, group)

    def _step_one(self, param, state, group):
        first, second = group["betas"]
        correction = 1 - first ** group["step"] if group["bias_correction"] else 1.0
        state["exp_avg"].lerp_(param.grad, 1 - first)
        state["exp_avg_sq"].mul_(second).addcmul_(param.grad, param.grad, value=1 - second)
        denominator = state["exp_avg_sq"].sqrt().add_(group["eps"])
        param.addcdiv_(state["exp_avg"], denominator, value=-group["lr"] / correction)


def both():
    native = FusedAdamLike(parameters(), lr=0.02)
    rule = GroupStepRule(FusedAdamLike([torch.zeros(1)]))
    return native, ChunkedAdam(parameters(), lr=0.02, rule=rule, **SMALL)


def step(optimizer, seed, without=()):
    drawn = gradients(SHAPES, seed)
    for number, param in enumerate(optimizer.param_groups[0]["params"]):
        param.grad = None if number in without else drawn[number]
    optimizer.step()


def test_an_optimizer_that_counts_in_groups_is_driven_bit_for_bit():
    native, ours = both()
    for seed, without in enumerate([(), (2, 6), range(len(SHAPES)), ()]):
        step(native, seed, without)
        step(ours, seed, without)
    assert ours.param_groups[0]["step"] == native.param_groups[0]["step"] == 4
    params = zip(native.param_groups[0]["params"], ours.param_groups[0]["params"], strict=True)
    for theirs, mine in params:
        assert torch.equal(theirs.data, ours.master(mine))
        assert set(ours.state[mine]) == {"exp_avg", "exp_avg_sq"}
        assert torch.equal(native.state[theirs]["exp_avg_sq"], ours.state[mine]["exp_avg_sq"])


def test_its_state_dict_has_the_counter_in_the_group_and_comes_back():
    native, ours = both()
    step(native, 0)
    step(ours, 0)
    state = ours.state_dict()
    assert state["param_groups"][0]["step"] == 1 and "step" not in state["state"][0]
    ours.load_state_dict(native.state_dict())
    assert ours.param_groups[0]["step"] == 1


def test_the_driven_optimizer_keeps_nothing_of_a_step():
    _, ours = both()
    step(ours, 0)
    driven = ours._stepper.rule.optimizer
    assert not driven.state and not driven.param_groups


class ForgetsToCount(FusedAdamLike):
    def step(self, closure=None):
        pass


class ReplacesItsMoments(FusedAdamLike):
    def _step_one(self, param, state, group):
        state["exp_avg"] = state["exp_avg"] + param.grad


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(ForgetsToCount, "left its group's step at 0"), (ReplacesItsMoments, "replaced its moments")],
)
def test_an_optimizer_that_does_not_work_like_one_is_found_out(kind, reason):
    ours = ChunkedAdam(parameters(), rule=GroupStepRule(kind([torch.zeros(1)])), **SMALL)
    with pytest.raises(StepFailed, match=reason):
        step(ours, 0)


@pytest.mark.parametrize("option", ["capturable", "master_weights"])
def test_an_option_of_a_driven_optimizer_that_cannot_be_had_is_refused(option):
    driven = FusedAdamLike([torch.zeros(1)])
    setattr(driven, option, True)
    with pytest.raises(ValueError, match=f"{option} of FusedAdamLike"):
        ChunkedAdam(parameters(), rule=GroupStepRule(driven), **SMALL)


def test_an_optimizer_that_reads_decoupled_gradients_gets_them_there():
    class Decoupled(FusedAdamLike):
        use_decoupled_grad = True

        def _step_one(self, param, state, group):
            raise AssertionError("read .grad")

        def step(self, closure=None):
            for group in self.param_groups:
                group["step"] = group.get("step", 0) + 1
                for param in group["params"]:
                    assert param.grad is None and param.decoupled_grad.shape == param.shape

    step(ChunkedAdam(parameters(), rule=GroupStepRule(Decoupled([torch.zeros(1)])), **SMALL), 0)


@pytest.mark.parametrize(
    ("flags", "num_bytes"),
    [
        ({"fused": True, "maximize": True}, 0),
        ({"fused": None, "maximize": False}, 8),
        ({"fused": False, "maximize": True}, 12),
        ({"fused": None, "maximize": False, "decoupled_weight_decay": False}, 12),
    ],
)
def test_what_a_kernel_allocates_while_it_steps_is_counted(flags, num_bytes):
    assert AdamWRule().passing_bytes(flags) == num_bytes
