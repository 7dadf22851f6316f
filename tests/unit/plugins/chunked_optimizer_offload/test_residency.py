import pytest
import torch
from adam_pair import SMALL, Pair, parameters

from miles_periodic.plugins.chunked_optimizer_offload import ChunkedAdam

SHAPES = ((), (1,), (0, 3), (5,), (7, 33))


@pytest.fixture
def params() -> list[torch.nn.Parameter]:
    return parameters(SHAPES)


@pytest.fixture
def data(params) -> list[torch.Tensor]:
    return [param.detach().clone() for param in params]


@pytest.fixture
def optimizer(params, data) -> ChunkedAdam:
    return ChunkedAdam(params, **SMALL)


def taken(params) -> bool:
    return all(bool(param.isnan().all()) for param in params)


def same(params, data) -> bool:
    return all(
        torch.equal(param.detach(), value) for param, value in zip(params, data, strict=True)
    )


def test_a_parameter_taken_over_reads_nan_and_its_master_is_its_data(optimizer, params, data):
    assert taken(params)
    assert same([optimizer.master(param) for param in params], data)


def test_a_placeholder_has_the_shape_and_takes_the_room_of_one_element(optimizer, params):
    assert [tuple(param.shape) for param in params] == list(SHAPES)
    assert params[4].untyped_storage().nbytes() == 4


def test_a_gradient_can_be_assigned_to_a_placeholder(optimizer, params):
    params[4].grad = torch.ones(7, 33)
    with pytest.raises(RuntimeError, match="size"):
        params[4].grad = torch.ones(7, 34)


def test_writing_a_placeholder_in_place_raises(optimizer, params):
    with torch.no_grad(), pytest.raises(RuntimeError, match="single memory location"):
        params[4].copy_(torch.ones(7, 33))


@pytest.mark.parametrize("number", [0, 1])
def test_writing_a_single_element_is_an_error_in_the_next_step(optimizer, params, number):
    with torch.no_grad():
        params[number].fill_(3.0)
    with pytest.raises(RuntimeError, match=f"parameter {number} .* inside resident"):
        optimizer.step()


def test_data_put_in_the_place_of_a_placeholder_is_an_error_in_the_next_step(optimizer, params):
    params[3].data = torch.ones(5)
    with pytest.raises(RuntimeError, match=r"parameter 3 .* master\(param\)"):
        optimizer.step()


def test_writing_a_master_is_stepped_on():
    pair = Pair()
    for optimizer in (pair.native, pair.chunked):
        param = optimizer.param_groups[0]["params"][6]
        (pair.chunked.master(param) if optimizer is pair.chunked else param.data).fill_(2.0)
    pair.step(0)
    pair.assert_equal()


def test_resident_parameters_have_their_data_and_what_is_written_is_kept(optimizer, params, data):
    with optimizer.resident():
        assert same(params, data)
        params[4].data.fill_(2.0)
        params[3].data = torch.full((5,), 3.0)
    assert taken(params)
    assert bool((optimizer.master(params[4]) == 2).all() & (optimizer.master(params[3]) == 3).all())


def test_only_the_parameters_that_are_asked_for_become_resident(optimizer, params):
    with optimizer.resident(params[:1]):
        assert not taken(params[:1]) and taken(params[1:])


def test_blocks_may_be_nested_and_the_outer_one_keeps_its_own(optimizer, params):
    with optimizer.resident(params[3:4]):
        params[3].data.fill_(9.0)
        with optimizer.resident():
            assert not taken(params[4:])
        assert taken(params[4:]) and bool((params[3] == 9).all())
    assert taken(params)


def test_an_exception_inside_leaves_the_placeholders_and_keeps_what_was_written(optimizer, params):
    with pytest.raises(ZeroDivisionError), optimizer.resident():
        params[3].data.fill_(4.0)
        raise ZeroDivisionError
    assert taken(params) and bool((optimizer.master(params[3]) == 4).all())


def test_a_shape_that_changed_inside_is_an_error_and_the_others_are_taken_back(
    optimizer, params, data
):
    refused = pytest.raises(RuntimeError, match=r"parameter 3 came back .* shape \(6,\)")
    with refused, optimizer.resident():
        params[3].data = torch.ones(6)
        params[4].data.fill_(1.0)
    assert taken(params)
    assert torch.equal(optimizer.master(params[3]), data[3])
    assert bool((optimizer.master(params[4]) == 1).all())


def test_a_device_that_has_no_room_for_all_takes_none(optimizer, params, monkeypatch):
    to, calls = torch.Tensor.to, []

    def full(tensor, *args, **kwargs):
        calls.append(tensor)
        if len(calls) == 4:
            raise torch.OutOfMemoryError("full")
        return to(tensor, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", full)
    with pytest.raises(torch.OutOfMemoryError), optimizer.resident():
        pass
    monkeypatch.undo()
    assert taken(params) and not optimizer._residency.resident


@pytest.mark.parametrize("use", [ChunkedAdam.step, ChunkedAdam.release])
def test_what_would_lose_writes_is_refused_inside(optimizer, use):
    with optimizer.resident(), pytest.raises(RuntimeError, match="Leave the block first"):
        use(optimizer)


def test_a_master_is_refused_while_its_parameter_has_the_data(optimizer, params):
    with optimizer.resident(params[:1]):
        with pytest.raises(RuntimeError, match=r"read param\.data"):
            optimizer.master(params[0])
        optimizer.master(params[1])


def test_released_parameters_have_their_data_for_good_and_no_workspace(params, data):
    optimizer = ChunkedAdam(params, **SMALL)
    params[3].grad = torch.ones(5)
    optimizer.step()
    stepped = optimizer.master(params[3]).clone()
    optimizer.release()
    assert torch.equal(params[3].data, stepped) and same(params[4:], data[4:])
    assert optimizer.device_bytes() == 0
    with pytest.raises(RuntimeError, match=r"call take_over\(\) first"):
        optimizer.step()


def test_taking_over_again_keeps_what_was_written_meanwhile():
    pair = Pair()
    pair.step(0)
    pair.chunked.release()
    for optimizer in (pair.native, pair.chunked):
        optimizer.param_groups[0]["params"][6].data.fill_(2.0)
    pair.chunked.take_over()
    pair.step(1)
    pair.assert_equal()


def test_releasing_and_taking_over_twice_changes_nothing(optimizer, params, data):
    optimizer.release()
    optimizer.release()
    assert same(params, data)
    optimizer.take_over()
    optimizer.take_over()
    assert taken(params)


def test_a_group_added_while_released_is_taken_over_with_the_others(optimizer):
    optimizer.release()
    added = torch.ones(4)
    optimizer.add_param_group({"params": [added]})
    assert bool((added == 1).all())
    optimizer.take_over()
    assert taken([added]) and bool((optimizer.master(added) == 1).all())


def test_a_parameter_converted_while_released_is_not_taken_over(optimizer, params, data):
    optimizer.release()
    params[4].data = params[4].data.bfloat16()
    with pytest.raises(TypeError, match="bfloat16"):
        optimizer.take_over()
    assert same(params[:4], data[:4])


class Other(torch.nn.Parameter):
    pass


@pytest.mark.parametrize(
    ("param", "reason"),
    [
        (torch.zeros(3, dtype=torch.bfloat16), "bfloat16.*Give the optimizer fp32 masters"),
        (torch.zeros(3, dtype=torch.float64), "float64"),
        (torch.zeros(3, device="meta"), "meta"),
        (torch.zeros(3, 4).t(), "not contiguous"),
        (Other(torch.zeros(3)), "Other of shape"),
    ],
)
def test_what_cannot_be_taken_over_is_refused_and_no_other_parameter_changes(param, reason):
    good = torch.ones(3)
    with pytest.raises((TypeError, ValueError), match=reason):
        ChunkedAdam([good, param], **SMALL)
    assert bool((good == 1).all())


def test_a_parameter_of_nobody_is_refused(optimizer):
    with pytest.raises(ValueError, match="no parameter of this optimizer"):
        optimizer.master(torch.zeros(3))
