"""Moves to the host of stock SGLang that a CPU has to turn back into copies."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from miles_periodic.compat.cpu import stock_sglang  # noqa: E402


class Output:
    """SGLang's, as far as the stand-in sees it: views of buffers that the next forward writes."""

    def __init__(self, out_cache_loc, topk) -> None:
        self.out_cache_loc, self.topk = out_cache_loc, topk


class InOrder(Output):
    """As 0.5.12 to 0.5.14 have it."""

    def copy_to_cpu(self):
        self.out_cache_loc = self.out_cache_loc.to("cpu", non_blocking=True)
        self.topk = self.topk.to("cpu", non_blocking=True)


class Aside(Output):
    """As later releases have it: the caller chooses the copy."""

    def map_device_tensors(self, copied):
        self.out_cache_loc, self.topk = copied(self.out_cache_loc), copied(self.topk)


def made(output_type):
    """An output of a fresh type, after the stand-in went in, and the buffer that it views."""
    own = type(output_type.__name__, (output_type,), {})
    stock_sglang.topk_leaves_the_forward_buffer(
        SimpleNamespace(__name__="base", TopkCaptureOutput=own)
    )
    buffer = torch.tensor([[1, 2], [3, 4]])
    return own(torch.tensor([7]), buffer[:1]), buffer


def test_the_routes_of_a_step_survive_the_next_step():
    output, buffer = made(InOrder)
    places = output.out_cache_loc
    output.copy_to_cpu()
    buffer.fill_(9)
    places.fill_(9)
    assert output.topk.tolist() == [[1, 2]] and output.out_cache_loc.tolist() == [7]


def test_where_the_next_forward_overtakes_the_copy_on_a_gpu_too_it_is_left_alone():
    output, buffer = made(Aside)
    output.map_device_tensors(lambda tensor: tensor.to("cpu", non_blocking=True))
    buffer.fill_(9)
    assert output.topk.tolist() == [[9, 9]]
