"""ChunkedAdam against torch.optim.AdamW, bit for bit, and the ways of a torch optimizer."""

import copy
import io
import pickle

import pytest
import torch
from adam_pair import SHAPES, SMALL, Pair, assert_equal, gradients, parameters
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_periodic.plugins.chunked_optimizer_offload import ChunkedAdam

KERNELS = ({}, {"foreach": True}, {"foreach": False}, {"fused": True})


@settings(max_examples=30)
@given(
    shapes=st.lists(st.tuples(st.integers(0, 700)), min_size=1, max_size=6),
    kernel=st.sampled_from(KERNELS),
    amsgrad=st.booleans(),
    maximize=st.booleans(),
    weight_decay=st.sampled_from([0.0, 0.1]),
    steps=st.lists(st.sets(st.integers(0, 5)), min_size=1, max_size=4),
    chunk_bytes=st.sampled_from([2048, 5000, 30_000]),
)
def test_masters_moments_and_counters_are_those_of_torch(
    shapes, kernel, amsgrad, maximize, weight_decay, steps, chunk_bytes
):
    pair = Pair(
        shapes,
        {"workspace_bytes": 1 << 18, "chunk_bytes": chunk_bytes},
        lr=1e-2,
        amsgrad=amsgrad,
        maximize=maximize,
        weight_decay=weight_decay,
        **kernel,
    )
    for number, without in enumerate(steps):
        pair.step(number, without)
    pair.assert_equal()


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_parameter_that_threads_share_is_equal_however_it_is_split(kernel):
    pair = Pair(((100_003,), (40_001,)), {"workspace_bytes": 1 << 20}, **kernel)
    for seed in range(3):
        pair.step(seed)
    assert pair.chunked.last_step.num_pieces > 4
    pair.assert_equal()


def test_groups_have_hyperparameters_of_their_own_and_schedulers_change_them():
    pair = Pair()
    for optimizer in (pair.native, pair.chunked):
        more = parameters(((40,), (600,)))
        optimizer.add_param_group({"params": more, "lr": 0.5, "betas": (0.5, 0.6), "eps": 1e-3})
    pair.shapes = (*pair.shapes, (40,), (600,))
    schedulers = [
        torch.optim.lr_scheduler.ExponentialLR(o, 0.5) for o in (pair.native, pair.chunked)
    ]
    for seed in range(4):
        pair.step(seed)
        for scheduler in schedulers:
            scheduler.step()
    assert pair.chunked.param_groups[1]["lr"] == 0.5 * 0.5**4
    pair.assert_equal()


@pytest.mark.parametrize("kernel", [{}, {"fused": True}])
def test_a_learning_rate_may_be_a_tensor(kernel):
    pair = Pair(lr=torch.tensor(1e-2), **kernel)
    pair.step(0)
    pair.step(1)
    pair.assert_equal()


def test_one_group_may_use_amsgrad_and_its_neighbour_not():
    pair = Pair(((100,), (50,)))
    for optimizer in (pair.native, pair.chunked):
        optimizer.add_param_group({"params": parameters(((70,),)), "amsgrad": True})
    pair.shapes = ((100,), (50,), (70,))
    pair.step(0, without=(2,))
    pair.step(1)
    pair.assert_equal()


def test_l2_decay_is_had_by_a_group_that_says_so():
    pair = Pair(((300,),), weight_decay=0.1)
    for optimizer in (pair.native, pair.chunked):
        optimizer.param_groups[0]["decoupled_weight_decay"] = False
    pair.step(0)
    pair.step(1)
    pair.assert_equal()


def test_a_parameter_without_gradient_is_untouched_and_not_moved():
    pair = Pair(((300,), (200,)))
    frozen = pair.chunked.param_groups[0]["params"][1]
    before = pair.chunked.master(frozen).clone()
    pair.step(0, without=(1,))
    assert torch.equal(pair.chunked.master(frozen), before) and frozen not in pair.chunked.state
    assert pair.chunked.last_step.bytes_in == 12 * 300


def test_a_step_without_any_gradient_does_nothing():
    pair = Pair()
    pair.step(0, without=range(len(SHAPES)))
    pair.assert_equal()


def test_a_gradient_that_is_not_contiguous_is_stepped_as_it_reads():
    pair = Pair(((30, 40),))
    for optimizer in (pair.native, pair.chunked):
        (param,) = optimizer.param_groups[0]["params"]
        param.grad = gradients(((40, 30),), 3)[0].t()
        optimizer.step()
    pair.assert_equal()


def test_the_step_dtype_follows_torchs_default():
    torch.set_default_dtype(torch.float64)
    try:
        (data,) = (p.detach().float() for p in parameters(((30,),)))
        native, ours = torch.optim.AdamW([data.clone()]), ChunkedAdam([data])
        for optimizer in (native, ours):
            optimizer.param_groups[0]["params"][0].grad = torch.ones(30, dtype=torch.float32)
            optimizer.step()
        assert_equal(native, ours)
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_constructor_takes_the_arguments_of_torch_in_their_order():
    native = torch.optim.AdamW(parameters(), 0.1, (0.5, 0.6), 1e-4, 0.3, True, maximize=True)
    ours = ChunkedAdam(parameters(), 0.1, (0.5, 0.6), 1e-4, 0.3, True, maximize=True)
    assert ours.defaults == native.defaults
    assert list(ours.param_groups[0]) == list(native.param_groups[0])
    assert isinstance(ours, torch.optim.AdamW)


@pytest.mark.parametrize("option", ["capturable", "differentiable"])
def test_an_option_that_cannot_be_had_is_refused_by_name(option):
    params = parameters()
    with pytest.raises(ValueError, match=f"{option}=True cannot be had"):
        ChunkedAdam(params, **{option: True})
    assert not any(param.isnan().any() for param in params)


@pytest.mark.parametrize(
    "limits",
    [
        {"workspace_bytes": 1000},
        {"chunk_bytes": 10},
        {"chunk_bytes": 1 << 20, "workspace_bytes": 1 << 20},
    ],
)
def test_limits_that_hold_no_three_chunks_are_refused_and_nothing_is_taken(limits):
    params = parameters()
    with pytest.raises(ValueError, match=f"{list(limits)[-1]}=.* is too small"):
        ChunkedAdam(params, **limits)
    assert not any(param.isnan().any() for param in params)


def test_a_limit_that_is_no_whole_number_is_refused():
    with pytest.raises(TypeError, match="float"):
        ChunkedAdam(parameters(), workspace_bytes=1e9)


def test_a_group_that_cannot_be_taken_over_is_not_added():
    ours = ChunkedAdam(parameters(), **SMALL)
    with pytest.raises(TypeError, match="bfloat16"):
        ours.add_param_group({"params": [torch.zeros(3, dtype=torch.bfloat16)]})
    assert len(ours.param_groups) == 1
    good = torch.zeros(3)
    ours.add_param_group({"params": [good]})
    assert ours.master(good).shape == (3,)


def test_a_closure_sees_real_data_and_its_loss_comes_back():
    native, ours = torch.optim.AdamW(parameters()), ChunkedAdam(parameters(), **SMALL)
    losses = []
    for optimizer in (native, ours):
        params = optimizer.param_groups[0]["params"]

        def closure(params=params, optimizer=optimizer):
            optimizer.zero_grad()
            loss = sum((param**2).sum() for param in params)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
    assert losses[0] == losses[1]
    assert_equal(native, ours)


def test_a_closure_that_fails_leaves_the_placeholders():
    ours = ChunkedAdam(parameters(), **SMALL)
    with pytest.raises(ZeroDivisionError):
        ours.step(lambda: 1 / 0)
    assert all(p.isnan().all() for p in ours.param_groups[0]["params"])


def test_a_sparse_gradient_is_refused():
    param = torch.nn.Parameter(torch.zeros(10, 2))
    ours = ChunkedAdam([param], **SMALL)
    param.grad = torch.sparse_coo_tensor([[1]], [[1.0, 1.0]], (10, 2), check_invariants=True)
    with pytest.raises(RuntimeError, match="sparse.*SparseAdam"):
        ours.step()


def test_a_tensor_put_into_a_group_behind_its_back_is_refused():
    ours = ChunkedAdam(parameters(), **SMALL)
    stranger = torch.zeros(3)
    stranger.grad = torch.ones(3)
    ours.param_groups[0]["params"].append(stranger)
    with pytest.raises(ValueError, match="add_param_group"):
        ours.step()


def test_step_hooks_of_torch_are_called():
    pair, calls = Pair(), []
    pair.chunked.register_step_pre_hook(lambda *_: calls.append("before"))
    pair.chunked.register_step_post_hook(lambda *_: calls.append("after"))
    pair.step(0)
    assert calls == ["before", "after"]


def test_a_grad_scaler_skips_the_step_itself_also_with_fused():
    assert not ChunkedAdam(parameters(), fused=True, **SMALL)._step_supports_amp_scaling


def test_bf16_moments_are_widened_stepped_and_rounded_to_nearest():
    shapes = ((500,), (3, 70))
    ours = ChunkedAdam(parameters(shapes), moment_dtype=torch.bfloat16, **SMALL)
    native = torch.optim.AdamW(parameters(shapes))
    for seed in range(4):
        for optimizer in (native, ours):
            for p, g in zip(
                optimizer.param_groups[0]["params"], gradients(shapes, seed), strict=True
            ):
                p.grad = g
            optimizer.step()
        for state in native.state.values():
            for kind in ("exp_avg", "exp_avg_sq"):
                state[kind].copy_(state[kind].bfloat16())
    for theirs, mine in zip(*(o.param_groups[0]["params"] for o in (native, ours)), strict=True):
        assert torch.equal(theirs.data, ours.master(mine))
        assert ours.state[mine]["exp_avg"].dtype == torch.bfloat16
        assert torch.equal(
            native.state[theirs]["exp_avg_sq"], ours.state[mine]["exp_avg_sq"].float()
        )
    assert ours.last_step.bytes_in == 8 * 500 + 8 * 12 + 8 * 210


def test_a_taken_over_optimizer_is_not_copied_or_pickled():
    ours = ChunkedAdam(parameters(), **SMALL)
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"release\(\)"):
            copied(ours)


@pytest.mark.parametrize("how", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_a_released_one_is_copied_with_its_state_and_goes_on_alike(how):
    pair = Pair()
    pair.step(0)
    pair.chunked.release()
    original, pair.chunked = pair.chunked, how(pair.chunked)
    pair.chunked.take_over()
    pair.step(1)
    pair.assert_equal()
    assert all(not p.isnan().any() for p in original.param_groups[0]["params"])


def test_what_torch_saves_of_its_state_is_loaded_again():
    pair = Pair()
    pair.step(0)
    file = io.BytesIO()
    torch.save(pair.chunked.state_dict(), file)
    file.seek(0)
    pair.chunked.load_state_dict(torch.load(file))
    pair.step(1)
    pair.assert_equal()


def test_its_bytes_are_told():
    pair = Pair(((1000,),), {"workspace_bytes": 1 << 16})
    assert pair.chunked.device_bytes() == 4
    pair.step(0)
    assert pair.chunked.device_bytes() <= 1 << 16
    assert pair.chunked.host_bytes() == 12 * 1024
