import torch

from miles_periodic.plugins.chunked_optimizer_offload.host_memory import HostMemory
from miles_periodic.plugins.chunked_optimizer_offload.layout import Extent


def memory() -> HostMemory:
    host = HostMemory(pinned=False)
    host.add_blocks([256, 128])
    host.add_kind("master", torch.float32)
    return host


def test_a_kind_is_zeros_in_every_block():
    host = memory()
    assert not host.slice("master", 0, 0, 256).any() and not host.slice("master", 1, 0, 128).any()


def test_a_parameter_is_seen_in_its_shape_and_shares_the_blocks_memory():
    host = memory()
    host.view("master", Extent(1, 10, 6), (2, 3)).fill_(7)
    assert host.slice("master", 1, 0, 128).sum() == 42


def test_asking_for_a_kind_again_keeps_what_is_in_it():
    host = memory()
    host.slice("master", 0, 0, 5).fill_(1)
    host.add_kind("master", torch.float32)
    assert host.slice("master", 0, 0, 256).sum() == 5


def test_blocks_that_come_later_have_every_kind():
    host = memory()
    host.add_kind("exp_avg", torch.bfloat16)
    host.add_blocks([384])
    assert host.slice("exp_avg", 2, 0, 384).dtype == torch.bfloat16
    assert host.num_bytes() == (256 + 128 + 384) * 6


def test_pinned_memory_is_asked_for_where_it_is_allocated(monkeypatch):
    asked, zeros = [], torch.zeros

    def allocate(length, *, dtype, pin_memory):
        asked.append(pin_memory)
        return zeros(length, dtype=dtype)

    monkeypatch.setattr(torch, "zeros", allocate)
    host = HostMemory(pinned=True)
    host.add_blocks([128])
    host.add_kind("master", torch.float32)
    assert asked == [True]
