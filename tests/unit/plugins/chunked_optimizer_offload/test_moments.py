import pytest
import torch
from adam_pair import SMALL, Pair, parameters
from queued_lanes import QueuedDevice

from miles_periodic.plugins.chunked_optimizer_offload import ChunkedAdam


@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn, torch.float64])
def test_moments_of_other_dtypes_are_refused_by_name(dtype):
    params = parameters()
    with pytest.raises(ValueError, match=f"moment_dtype={dtype}"):
        ChunkedAdam(params, moment_dtype=dtype, **SMALL)
    assert not any(param.isnan().any() for param in params)


def test_state_is_made_at_a_parameters_first_gradient():
    pair = Pair(((10,), (20,)))
    pair.step(0, without=(1,))
    assert len(pair.chunked.state) == 1
    pair.step(1)
    pair.assert_equal()


def test_reading_the_state_waits_for_the_last_step():
    pair = Pair()
    pair.chunked._stepper.make_lanes = QueuedDevice(0).lanes
    pair.step(0)
    param = pair.chunked.param_groups[0]["params"][6]
    assert not pair.chunked._state[param]["exp_avg"].any()
    assert pair.chunked.state[param]["exp_avg"].all()


def test_a_counter_that_is_a_number_is_stepped_on_as_torch_would():
    pair = Pair(((10,),))
    pair.step(0)
    for optimizer in (pair.native, pair.chunked):
        (state,) = optimizer.state.values()
        state["step"] = torch.tensor(4.0) if optimizer is pair.native else 4
    pair.step(1)
    pair.assert_equal()
