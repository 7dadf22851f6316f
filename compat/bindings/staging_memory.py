"""Host memory that tensors are copied into while they are written, and given back after.

Torch is imported where it is used: only train ranks need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: Copies start at multiples of it, so that each is aligned for every dtype and for DMA.
ALIGNMENT_BYTES = 256


class NotPinned(Exception):
    """CUDA refused to pin the memory that copies were to go into."""


def copy_bytes(tensor: Any) -> int:
    """Host bytes that a copy of `tensor` takes; 0 where it can be written from where it lies."""
    if tensor.numel() == 0 or (lies_on_host(tensor) and tensor.is_contiguous()):
        return 0
    return -(-tensor.numel() * tensor.element_size() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def lies_on_host(tensor: Any) -> bool:
    """Whether a tensor's elements are in host memory."""
    return tensor.device.type == "cpu"


def is_view(tensor: Any) -> bool:
    """Whether a host tensor's storage holds more than the tensor, all of which would be written."""
    return tensor.untyped_storage().size() != tensor.numel() * tensor.element_size()


def in_place(tensor: Any) -> Any:
    """A contiguous host tensor over the same memory, whose storage holds nothing else."""
    import torch

    if not is_view(tensor):
        return tensor
    start = tensor.storage_offset() * tensor.element_size()
    size = tensor.numel() * tensor.element_size()
    storage = tensor.untyped_storage()[start : start + size]
    bare = torch.empty(0, dtype=tensor.dtype)
    return bare.set_(storage, 0, tensor.shape, tensor.stride())


class StagingMemory:
    """Memory for the copies of one wave at a time; nothing is held outside its `with` block.

    shared_bytes: size of the buffer that waves share; a wave that needs more gets one of its
        own, while the shared one is not held.
    peak_bytes: the most that was held at once.
    """

    def __init__(self, shared_bytes: int) -> None:
        self.shared_bytes = shared_bytes
        self.peak_bytes = 0
        self._buffer: Any = None
        self._is_pinned = False

    def __enter__(self) -> StagingMemory:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.release()

    @property
    def held_bytes(self) -> int:
        return 0 if self._buffer is None else self._buffer.numel()

    def stage(self, tensors: Sequence[Any]) -> list[Any]:
        """Each tensor on the host, as a tensor whose storage holds nothing else.

        They are valid until the next call. Copies from a GPU have ended when this returns.
        """
        import torch

        self._hold(sum(copy_bytes(tensor) for tensor in tensors))
        staged, start = [], 0
        for tensor in tensors:
            size = copy_bytes(tensor)
            if size == 0:
                staged.append(in_place(tensor) if lies_on_host(tensor) else tensor.to("cpu"))
                continue
            place = self._place(start, tensor)
            place.copy_(tensor, non_blocking=True)
            staged.append(place)
            start += size
        if any(tensor.is_cuda for tensor in tensors):
            torch.cuda.synchronize()
        return staged

    def _place(self, start: int, like: Any) -> Any:
        """A part of the buffer as a contiguous tensor with a storage of its own."""
        import torch

        size = like.numel() * like.element_size()
        storage = self._buffer.untyped_storage()[start : start + size]
        return torch.empty(0, dtype=like.dtype).set_(storage, 0, like.shape)

    def _hold(self, num_bytes: int) -> None:
        """Have the shared buffer, or where it is too small one of `num_bytes` and only that."""
        wanted = self.shared_bytes if num_bytes <= self.shared_bytes else num_bytes
        if self.held_bytes == wanted:
            return
        self.release()
        if num_bytes:
            self._take(wanted)

    def _take(self, num_bytes: int) -> None:
        """Allocate; pinned where there is a GPU, so that copies run at the full speed of the bus.

        Registered instead of allocated as pinned: torch's allocator of pinned memory rounds up to
        a power of two and keeps what is freed.
        """
        import torch

        self._buffer = torch.empty(num_bytes, dtype=torch.uint8)
        self.peak_bytes = max(self.peak_bytes, num_bytes)
        if torch.cuda.is_available():
            status = torch.cuda.cudart().cudaHostRegister(self._buffer.data_ptr(), num_bytes, 0)
            if int(status) != 0:
                # Going on unpinned would leave CUDA's last error for the next kernel to raise.
                raise NotPinned(
                    f"{num_bytes} bytes of host memory cannot be pinned (CUDA status "
                    f"{int(status)}); lower staging_bytes"
                )
            self._is_pinned = True

    def release(self) -> None:
        """Give everything back; harmless where nothing is held."""
        if self._is_pinned:
            import torch

            torch.cuda.cudart().cudaHostUnregister(self._buffer.data_ptr())
        self._buffer, self._is_pinned = None, False
