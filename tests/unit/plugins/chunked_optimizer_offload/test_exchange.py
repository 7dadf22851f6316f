"""Checkpoints between torch.optim.AdamW, ChunkedAdam, and optimizers that count in groups."""

import copy

import pytest
import torch
from adam_pair import SHAPES, SMALL, Pair, assert_equal, gradients, parameters

from miles_periodic.plugins.chunked_optimizer_offload import ChunkedAdam, GroupStepRule


def loaded_into(optimizer, state_dict, masters):
    optimizer.load_state_dict(state_dict)
    for param, data in zip(optimizer.param_groups[0]["params"], masters, strict=True):
        if isinstance(optimizer, ChunkedAdam):
            optimizer.master(param).copy_(data)
        else:
            param.data.copy_(data)
    return optimizer


def masters(chunked):
    return [chunked.master(p).clone() for p in chunked.param_groups[0]["params"]]


@pytest.mark.parametrize("kernel", [{}, {"fused": True}, {"amsgrad": True}])
def test_either_optimizer_goes_on_from_the_others_checkpoint_bit_for_bit(kernel):
    pair = Pair(**kernel)
    pair.step(0)
    pair.step(1, without=(3,))
    theirs, ours = (copy.deepcopy(o.state_dict()) for o in (pair.native, pair.chunked))
    data = masters(pair.chunked)
    native = loaded_into(torch.optim.AdamW(parameters(), **kernel), ours, data)
    chunked = loaded_into(ChunkedAdam(parameters(), **kernel, **SMALL), theirs, data)
    pair.step(2)
    for optimizer in (native, chunked):
        for param, grad in zip(
            optimizer.param_groups[0]["params"], gradients(SHAPES, 2), strict=True
        ):
            param.grad = grad
        optimizer.step()
    pair.assert_equal()
    assert_equal(native, pair.chunked)
    assert_equal(pair.native, chunked)


def test_the_state_dict_has_the_layout_of_torch():
    pair = Pair()
    pair.step(0)
    theirs, ours = pair.native.state_dict(), pair.chunked.state_dict()
    assert theirs["param_groups"] == ours["param_groups"]
    assert list(theirs["state"]) == list(ours["state"])
    assert [list(s) for s in theirs["state"].values()] == [list(s) for s in ours["state"].values()]


def test_loading_copies_and_keeps_the_persistent_host_tensors():
    pair = Pair()
    pair.step(0)
    chunked = ChunkedAdam(parameters(), **SMALL)
    source = pair.native.state_dict()
    chunked.load_state_dict(source)
    param = chunked.param_groups[0]["params"][6]
    moment = chunked.state[param]["exp_avg"]
    chunked.load_state_dict(source)
    assert chunked.state[param]["exp_avg"] is moment
    moment.fill_(1.0)
    assert not bool((source["state"][6]["exp_avg"] == 1).all())


def test_loading_never_puts_moments_where_the_parameters_are(monkeypatch):
    pair = Pair()
    pair.step(0)
    called = []
    policy = torch.optim.Optimizer._process_value_according_to_param_policy
    monkeypatch.setattr(
        torch.optim.Optimizer,
        "_process_value_according_to_param_policy",
        staticmethod(lambda *a, **k: called.append(a) or policy(*a, **k)),
    )
    ChunkedAdam(parameters(), **SMALL).load_state_dict(pair.native.state_dict())
    assert not called


def test_hooks_on_loading_see_tensors_before_and_after():
    pair = Pair()
    pair.step(0)
    seen = []
    pair.chunked.register_load_state_dict_pre_hook(
        lambda _, given: seen.append(type(given["state"][6]["exp_avg"]))
    )
    pair.chunked.register_load_state_dict_post_hook(
        lambda o: seen.append(type(o.state[o.param_groups[0]["params"][6]]["exp_avg"]))
    )
    pair.chunked.load_state_dict(pair.native.state_dict())
    assert seen == [torch.Tensor, torch.Tensor]


def test_a_state_of_fewer_parameters_leaves_the_others_fresh():
    pair = Pair()
    pair.step(0)
    state = copy.deepcopy(pair.native.state_dict())
    pair.step(1)
    del state["state"][6]
    for optimizer in (pair.native, pair.chunked):
        optimizer.load_state_dict(copy.deepcopy(state))
    pair.step(2)
    pair.assert_equal()


def test_bf16_moments_are_loaded_from_fp32_and_into_it():
    pair = Pair()
    pair.step(0)
    narrow = ChunkedAdam(parameters(), moment_dtype=torch.bfloat16, **SMALL)
    narrow.load_state_dict(pair.native.state_dict())
    rounded = pair.native.state_dict()["state"][6]["exp_avg"].bfloat16()
    assert torch.equal(narrow.state_dict()["state"][6]["exp_avg"], rounded)
    native = torch.optim.AdamW(parameters())
    native.load_state_dict(narrow.state_dict())
    assert torch.equal(native.state_dict()["state"][6]["exp_avg"], rounded.float())


def broken(change):
    pair = Pair()
    pair.step(0)
    state = copy.deepcopy(pair.native.state_dict())
    change(state)
    return pair, state


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s: s["state"][6].pop("exp_avg"), r"parameter 6 .* no exp_avg"),
        (lambda s: s["state"][6].update(exp_avg=torch.zeros(3)), r"shape \(3,\)"),
        (
            lambda s: s["state"][6].update(exp_avg=torch.zeros(7, 33).half()),
            "float16, which needs scales",
        ),
        (
            lambda s: s["state"][6].update(exp_avg=torch.zeros(7, 33).to(torch.float8_e4m3fn)),
            "float8_e4m3fn, which needs scales",
        ),
        (lambda s: s["state"][6].pop("step"), "parameter 6 has moments and no step"),
        (lambda s: s["param_groups"][0].update(capturable=True), "capturable=True"),
        (lambda s: s["param_groups"][0].update(amsgrad=True), "no max_exp_avg_sq"),
        (lambda s: s["param_groups"][0]["params"].pop(), "doesn't match the size"),
    ],
)
def test_a_state_that_cannot_be_loaded_is_refused_and_nothing_changes(change, reason):
    pair, state = broken(change)
    with pytest.raises(ValueError, match=reason):
        pair.chunked.load_state_dict(state)
    pair.step(1)
    pair.assert_equal()


def test_moments_put_in_the_place_of_ours_are_stepped_on():
    pair = Pair()
    pair.step(0)
    for optimizer in (pair.native, pair.chunked):
        state = optimizer.state[optimizer.param_groups[0]["params"][6]]
        state["exp_avg"] = torch.full((7, 33), 0.5)
        state["step"] = torch.tensor(9.0)
    pair.step(1)
    pair.assert_equal()


def test_a_state_that_was_emptied_starts_anew():
    pair = Pair()
    pair.step(0)
    for optimizer in (pair.native, pair.chunked):
        optimizer.state.clear()
    pair.step(1)
    pair.assert_equal()


def test_a_counter_in_the_group_becomes_every_parameters_own():
    pair = Pair()
    pair.step(0)
    state = copy.deepcopy(pair.native.state_dict())
    for entry in state["state"].values():
        del entry["step"]
    state["param_groups"][0]["step"] = 1
    pair.chunked.load_state_dict(state)
    pair.step(1)
    pair.assert_equal()
    assert "step" not in pair.chunked.param_groups[0]


def counting(params) -> ChunkedAdam:
    return ChunkedAdam(params, rule=GroupStepRule(CountsInGroups([torch.zeros(1)])), **SMALL)


class CountsInGroups(torch.optim.Optimizer):
    """Stands for FusedAdam."""

    def __init__(self, params) -> None:
        super().__init__(params, {"lr": 1e-3})

    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1


def test_equal_counters_become_the_groups():
    pair = Pair()
    pair.step(0)
    ours = counting(parameters())
    ours.load_state_dict(pair.native.state_dict())
    assert ours.param_groups[0]["step"] == 1
    assert "step" not in ours.state[ours.param_groups[0]["params"][6]]


def test_counters_that_differ_cannot_become_one():
    pair = Pair()
    pair.step(0)
    pair.step(1, without=(2,))
    with pytest.raises(ValueError, match=r"stepped \[1\.0, 2\.0\] times"):
        counting(parameters()).load_state_dict(pair.native.state_dict())
