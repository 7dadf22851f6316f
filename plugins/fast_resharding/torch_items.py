"""Where the raw bytes of a tensor lie inside an item that torch.save wrote.

An item is a zip archive of stored (never compressed) members: `data.pkl` describes the tensor,
`data/0` is its storage. Only the archive's ends are read, never the storage.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding import restricted_pickle
from miles_periodic.plugins.fast_resharding.element_types import ElementType, element_type
from miles_periodic.plugins.fast_resharding.settings import SLUG

ReadBytes = Callable[[int, int], bytes]
"""(offset in the item, number of bytes) to exactly that many bytes."""

_END_BYTES = 4096
#: What an archive or a description of a tensor raises whose bytes are not what was written.
_NOT_AS_WRITTEN = (
    zipfile.BadZipFile,
    ArithmeticError,
    AttributeError,
    LookupError,
    NotImplementedError,
    OSError,
    TypeError,
    ValueError,
)
_LOCAL_HEADER_BYTES = 30
_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}


@dataclass(frozen=True)
class RawTensor:
    """A tensor in a file.

    start: byte of its first element, counted from the item's start. sizes, strides: elements.
    """

    start: int
    element: ElementType
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def axes_by_stride(self) -> tuple[int, ...]:
        """The axes from the slowest to the fastest in the file."""
        axes = range(len(self.sizes))
        return tuple(sorted(axes, key=lambda i: (-self.strides[i] if self.sizes[i] > 1 else 0, i)))

    @property
    def is_dense(self) -> bool:
        """Whether the file holds its elements one after the other, in some order of the axes."""
        expected = 1
        for axis in sorted(
            (i for i, n in enumerate(self.sizes) if n > 1), key=lambda i: self.strides[i]
        ):
            if self.strides[axis] != expected:
                return False
            expected *= self.sizes[axis]
        return True


def locate(read: ReadBytes, item_bytes: int, where: str) -> RawTensor:
    """The tensor of an item of `item_bytes`; `where` names the item in errors."""
    window = _Window(read, item_bytes)
    try:
        members = {_member_name(i.filename): i for i in zipfile.ZipFile(window).infolist()}
        pickled = _member_bytes(window, members["data.pkl"])
        order = _member_bytes(window, members["byteorder"]) if "byteorder" in members else b"little"
        if order.strip() != b"little":
            raise _damaged(where, f"byte order {order!r}")
        tensor = restricted_pickle.load(pickled, _BUILDERS, where=where, storage=_Storage)
        if not isinstance(tensor, _Tensor):
            raise _damaged(where, f"a {type(tensor).__name__} where a tensor belongs")
        return _placed(window, tensor, members, where)
    except _NOT_AS_WRITTEN as error:
        raise _damaged(where, f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class _Storage:
    """What stands for a storage: ("storage", its class, member, device, number of elements)."""

    identity: tuple

    @property
    def member(self) -> str:
        return f"data/{self.identity[2]}"


@dataclass(frozen=True)
class _Tensor:
    storage: _Storage
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    element: str


def _from_typed_storage(storage, offset, sizes, strides, *_rest: Any) -> _Tensor:
    return _Tensor(storage, offset, tuple(sizes), tuple(strides), storage.identity[1])


def _from_untyped_storage(
    storage, offset, sizes, strides, _requires_grad, _hooks, element, *_rest: Any
) -> _Tensor:
    return _Tensor(storage, offset, tuple(sizes), tuple(strides), element)


def _from_parameter(tensor: _Tensor, *_rest: Any) -> _Tensor:
    return tensor


_BUILDERS = {
    "torch._utils._rebuild_tensor_v2": _from_typed_storage,
    "torch._utils._rebuild_tensor_v3": _from_untyped_storage,
    "torch._utils._rebuild_parameter": _from_parameter,
    "torch.storage.UntypedStorage": "uint8",
    **{f"torch.{storage}": element for storage, element in _STORAGES.items()},
}


def _placed(window: _Window, tensor: _Tensor, members: dict, where: str) -> RawTensor:
    member = members.get(tensor.storage.member)
    element = element_type(tensor.element, where)
    if member is None:
        raise _damaged(where, f"no member {tensor.storage.member}")
    spans = (stride * (n - 1) for stride, n in zip(tensor.strides, tensor.sizes, strict=True))
    end = (tensor.offset + sum(spans) + 1) * element.itemsize if prod(tensor.sizes) else 0
    if member.compress_type != zipfile.ZIP_STORED or end > member.file_size:
        raise _damaged(where, f"{member.file_size:,} bytes of storage where {end:,} are needed")
    start = _data_start(window, member) + tensor.offset * element.itemsize
    if start + end - tensor.offset * element.itemsize > window.size:
        raise _damaged(where, "a storage that reaches beyond the item")
    return RawTensor(start, element, tensor.sizes, tensor.strides)


def _member_name(name: str) -> str:
    """A member's name without the archive's own name."""
    return name.partition("/")[2]


def _data_start(window: _Window, member: zipfile.ZipInfo) -> int:
    """The first byte of a member's data: its local header has lengths of its own."""
    header = window.at(member.header_offset, _LOCAL_HEADER_BYTES)
    if header[:4] != b"PK\x03\x04":
        raise zipfile.BadZipFile("a member without its header")
    lengths = (int.from_bytes(header[i : i + 2], "little") for i in (26, 28))
    return member.header_offset + _LOCAL_HEADER_BYTES + sum(lengths)


def _member_bytes(window: _Window, member: zipfile.ZipInfo) -> bytes:
    if member.compress_type != zipfile.ZIP_STORED:
        raise zipfile.BadZipFile(f"{member.filename} is compressed")
    return window.at(_data_start(window, member), member.file_size)


def _damaged(where: str, found: str) -> PeriodicError:
    return PeriodicError(
        f"{where} is not a tensor as torch.save writes one.",
        feature=SLUG,
        expected="a zip archive with one stored, little-endian tensor",
        found=found,
        remedy="Copy the checkpoint again from where it was written; this item is damaged.",
    )


class _Window(io.RawIOBase):
    """An item as a seekable file whose two ends are read once each."""

    def __init__(self, read: ReadBytes, size: int) -> None:
        super().__init__()
        self.size = size
        self._read = read
        self._position = 0
        head = min(size, _END_BYTES)
        tail = max(head, size - _END_BYTES)
        self._known = [(0, read(0, head))]
        if tail < size:
            self._known.append((tail, read(tail, size - tail)))

    def at(self, offset: int, num_bytes: int) -> bytes:
        if offset + num_bytes > self.size:
            raise zipfile.BadZipFile("a member that reaches beyond the item")
        for start, data in self._known:
            if start <= offset and offset + num_bytes <= start + len(data):
                return data[offset - start : offset - start + num_bytes]
        return self._read(offset, num_bytes)

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise OSError(22, "a position before the start")
        self._position = base + offset
        return self._position

    def read(self, num_bytes: int = -1) -> bytes:
        left = max(0, self.size - self._position)
        num_bytes = left if num_bytes is None or num_bytes < 0 else min(num_bytes, left)
        data = self.at(self._position, num_bytes) if num_bytes else b""
        self._position += len(data)
        return data
