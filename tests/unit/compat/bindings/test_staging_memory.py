"""Host memory for one wave: what is copied, what is not, and that all of it is given back."""

import io

import pytest
import torch

from miles_periodic.compat.bindings import staging_memory
from miles_periodic.compat.bindings.staging_memory import (
    ALIGNMENT_BYTES,
    NotPinned,
    StagingMemory,
    copy_bytes,
    in_place,
    is_view,
)

FLAT = torch.arange(1000, dtype=torch.float32)
DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.int64]


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(staging_memory, "lies_on_host", lambda tensor: False)


def saved_bytes(tensor):
    stream = io.BytesIO()
    torch.save(tensor, stream)
    return stream.tell()


def test_a_contiguous_host_tensor_takes_no_copy():
    assert copy_bytes(FLAT[10:20]) == 0


def test_a_strided_host_view_takes_a_copy():
    assert copy_bytes(FLAT.view(100, 10).t()) == -(-4000 // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def test_a_view_is_written_from_where_it_lies_without_the_rest_of_its_storage():
    view = FLAT[10:20].view(2, 5)
    placed = in_place(view)
    assert torch.equal(placed, view) and placed.data_ptr() == view.data_ptr()
    assert is_view(view) and not is_view(placed)
    assert saved_bytes(placed) < saved_bytes(view)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_copy_has_the_bits_of_its_tensor(as_on_a_gpu, dtype):
    tensors = [FLAT[n : n + 7 * n + 1].to(dtype) for n in range(5)]
    with StagingMemory(1 << 16) as memory:
        for tensor, staged in zip(tensors, memory.stage(tensors), strict=True):
            assert staged.dtype == dtype and not is_view(staged)
            assert torch.equal(staged.view(torch.uint8), tensor.view(torch.uint8))


def test_an_empty_tensor_and_a_scalar_are_staged(as_on_a_gpu):
    tensors = [torch.empty(0, 3), torch.tensor(7)]
    with StagingMemory(ALIGNMENT_BYTES) as memory:
        empty, scalar = memory.stage(tensors)
        assert empty.shape == (0, 3) and scalar.item() == 7 and scalar.shape == ()


def test_waves_share_one_buffer(as_on_a_gpu):
    with StagingMemory(4096) as memory:
        first = memory.stage([FLAT[:100]])[0].data_ptr()
        assert memory.stage([FLAT[:50]])[0].data_ptr() == first
        assert memory.peak_bytes == 4096


def test_a_wave_beyond_the_shared_buffer_gets_one_of_its_own_and_only_that(as_on_a_gpu):
    with StagingMemory(1024) as memory:
        memory.stage([FLAT[:10]])
        memory.stage([FLAT])
        assert memory.held_bytes == memory.peak_bytes == copy_bytes(FLAT)
        memory.stage([FLAT[:10]])
        assert memory.held_bytes == 1024


def test_nothing_is_held_where_nothing_is_copied():
    with StagingMemory(0) as memory:
        memory.stage([FLAT, FLAT[3:5]])
        assert memory.held_bytes == memory.peak_bytes == 0


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_everything_is_given_back_whatever_ends_the_save(as_on_a_gpu, error):
    memory = StagingMemory(4096)
    with pytest.raises(error), memory:
        memory.stage([FLAT[:10]])
        raise error
    assert memory.held_bytes == 0


def test_a_copy_that_fails_leaves_nothing_held(as_on_a_gpu):
    memory = StagingMemory(1 << 20)
    with pytest.raises(NotImplementedError), memory:
        memory.stage([FLAT, torch.empty(10, device="meta")])
    assert memory.held_bytes == 0


class Driver:
    """What CUDA is told about host memory."""

    def __init__(self, status=0):
        self.status, self.pinned = status, {}

    def cudaHostRegister(self, pointer, num_bytes, flags):
        if self.status == 0:
            self.pinned[pointer] = num_bytes
        return self.status

    def cudaHostUnregister(self, pointer):
        del self.pinned[pointer]


@pytest.fixture
def driver(monkeypatch, as_on_a_gpu):
    made = Driver()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: made)
    return made


def test_beside_a_gpu_the_buffer_is_pinned_while_it_is_held_and_no_longer(driver):
    with StagingMemory(1024) as memory:
        memory.stage([FLAT[:10]])
        assert list(driver.pinned.values()) == [1024]
        memory.stage([FLAT])
        assert list(driver.pinned.values()) == [copy_bytes(FLAT)]
    assert driver.pinned == {}


def test_memory_that_cannot_be_pinned_is_an_error_that_says_what_to_lower(driver):
    driver.status = 2
    memory = StagingMemory(1024)
    with pytest.raises(NotPinned, match="1024 bytes.*CUDA status 2.*lower staging_bytes"), memory:
        memory.stage([FLAT[:10]])
    assert memory.held_bytes == 0
