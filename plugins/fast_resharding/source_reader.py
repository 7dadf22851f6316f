"""Reads boxes of a checkpoint's chunks: exactly the bytes that are asked for, where possible in
place.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Protocol

import numpy as np

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding.boxes import Box
from miles_periodic.plugins.fast_resharding.dcp_checkpoint import Chunk
from miles_periodic.plugins.fast_resharding.settings import SCRATCH_BYTES, SLUG
from miles_periodic.plugins.fast_resharding.source_checksums import Storage, StretchesRead
from miles_periodic.plugins.fast_resharding.torch_items import RawTensor, locate

_MOST_FILES = 64
_MOST_CHUNKS = 4096


@dataclass
class Counters:
    """requested_bytes: of tensors, as asked for. read_bytes: of files, descriptions of tensors
    included. copied_bytes: of the former, what went through the scratch buffer. fetched_bytes: of
    read_bytes, what another node read.
    """

    requested_bytes: int = 0
    read_bytes: int = 0
    copied_bytes: int = 0
    fetched_bytes: int = 0


class Elsewhere(Protocol):
    """Files that this node does not see, read by one that does."""

    def __contains__(self, name: str) -> bool: ...

    def read(self, name: str, position: int, num_bytes: int) -> bytes:
        """Exactly that many bytes."""


class SourceReader:
    """The files of a checkpoint in one worker; its memory is `SCRATCH_BYTES`.

    Where it fetches, it holds as much again.
    """

    def __init__(self, folder: Path, elsewhere: Elsewhere | Collection[str] = ()) -> None:
        self._elsewhere = elsewhere
        self.counters = Counters()
        self.stretches = StretchesRead()
        self._folder = folder
        self._files: OrderedDict[str, int] = OrderedDict()
        self._raw: OrderedDict[tuple[str, int], RawTensor] = OrderedDict()
        self._scratch: np.ndarray | None = None

    def close(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])

    def read(self, key: str, chunk: Chunk, box: Box, element: str, out: np.ndarray) -> None:
        """Copy `box`, counted from the chunk's first element, into `out` of the same shape.

        out: unsigned integers as wide as an element, with any strides. Raises PeriodicError where
        the file is cut off or holds something else than the checkpoint's metadata says.
        """
        raw = self._locate(key, chunk, element)
        order = raw.axes_by_stride
        self.counters.requested_bytes += out.nbytes
        start = chunk.item_offset + raw.storage_start
        self._read_dense(
            Storage(key, chunk.file, start, raw.storage_bytes, raw.crc32),
            chunk.item_offset + raw.start,
            [raw.sizes[axis] for axis in order],
            [box.offsets[axis] for axis in order],
            out.transpose(order),
        )

    def read_rest(self, storage: Storage, gaps: Sequence[tuple[int, int]]) -> None:
        """What of a storage is in no target, for its checksum alone."""
        scratch = memoryview(self._scratch_buffer())
        for start, num_bytes in gaps:
            for at in range(start, start + num_bytes, SCRATCH_BYTES):
                part = scratch[: min(SCRATCH_BYTES, start + num_bytes - at)]
                self._read_stretch(storage, at, part)

    def _locate(self, key: str, chunk: Chunk, element: str) -> RawTensor:
        item = (chunk.file, chunk.item_offset)
        if item in self._raw:
            self._raw.move_to_end(item)
            return self._raw[item]
        where = f"{key} in {chunk.file}"
        raw = locate(
            lambda a, n: self.read_bytes(chunk.file, chunk.item_offset + a, n),
            chunk.item_bytes,
            where,
        )
        found = (raw.element.name, raw.sizes)
        if found != (element, chunk.box.sizes) or not raw.is_dense:
            raise PeriodicError(
                f"{where} is not the tensor that the checkpoint's metadata describes.",
                feature=SLUG,
                tree=str(self._folder),
                expected=f"{element} {list(chunk.box.sizes)}, one element after the other",
                found=f"{found[0]} {list(found[1])} with strides {list(raw.strides)}",
                remedy="Copy the checkpoint again; its files do not belong together.",
            )
        self._raw[item] = raw
        if len(self._raw) > _MOST_CHUNKS:
            self._raw.popitem(last=False)
        return raw

    def _read_dense(
        self,
        storage: Storage,
        start: int,
        sizes: Sequence[int],
        offsets: Sequence[int],
        out: np.ndarray,
    ) -> None:
        """Read from a C-ordered array of `sizes` at file position `start`."""
        if not out.ndim:
            out = out.reshape(1)
            sizes, offsets = [1], [0]
        row_bytes = prod(sizes[1:]) * out.itemsize
        start += offsets[0] * row_bytes
        if tuple(sizes[1:]) == out.shape[1:] and out.flags.c_contiguous:
            self._read_stretch(storage, start, memoryview(out.reshape(-1)).cast("B"))
        elif tuple(sizes[1:]) == out.shape[1:] and row_bytes <= SCRATCH_BYTES:
            self._read_through_scratch(storage, start, row_bytes, out)
        else:
            for row in range(out.shape[0]):
                at = start + row * row_bytes
                self._read_dense(storage, at, sizes[1:], offsets[1:], out[row])

    def _read_through_scratch(
        self, storage: Storage, start: int, row_bytes: int, out: np.ndarray
    ) -> None:
        step = max(1, SCRATCH_BYTES // row_bytes)
        for first in range(0, out.shape[0], step):
            rows = out[first : first + step]
            part = self._scratch_buffer()[: rows.nbytes]
            self._read_stretch(storage, start + first * row_bytes, memoryview(part))
            rows[...] = part.view(out.dtype).reshape(rows.shape)
            self.counters.copied_bytes += rows.nbytes

    def _scratch_buffer(self) -> np.ndarray:
        if self._scratch is None:
            self._scratch = np.empty(SCRATCH_BYTES, np.uint8)
        return self._scratch

    def read_bytes(self, name: str, position: int, num_bytes: int) -> bytes:
        """Bytes of a file as they are."""
        data = bytearray(num_bytes)
        self._read_into(name, position, memoryview(data))
        return bytes(data)

    def _read_stretch(self, storage: Storage, position: int, out: memoryview) -> None:
        self._read_into(storage.file, position, out)
        self.stretches.add(storage, position, out)

    def _read_into(self, name: str, position: int, out: memoryview) -> None:
        if name in self._elsewhere:
            self._fetch_into(name, position, out)
            return
        file, done = self._open(name), 0
        while done < len(out):
            got = self._pread(file, out[done:], position + done, name)
            if not got:
                raise self._cut_off(name, position + len(out), position + done)
            done += got
        self.counters.read_bytes += done

    def _fetch_into(self, name: str, position: int, out: memoryview) -> None:
        for done in range(0, len(out), SCRATCH_BYTES):
            part = out[done : done + SCRATCH_BYTES]
            part[:] = self._elsewhere.read(name, position + done, len(part))
        self.counters.read_bytes += len(out)
        self.counters.fetched_bytes += len(out)

    def _pread(self, file: int, out: memoryview, position: int, name: str) -> int:
        try:
            return os.preadv(file, [out], position)
        except OSError as error:
            raise self._unreadable(name, error) from error

    def _open(self, name: str) -> int:
        if name in self._files:
            self._files.move_to_end(name)
            return self._files[name]
        try:
            self._files[name] = os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self._unreadable(name, error) from error
        if len(self._files) > _MOST_FILES:
            os.close(self._files.popitem(last=False)[1])
        return self._files[name]

    def _unreadable(self, name: str, error: OSError) -> PeriodicError:
        return PeriodicError(
            f"The checkpoint's file {name} cannot be read: {error.strerror}.",
            feature=SLUG,
            tree=str(self._folder),
            remedy="Make the file readable on every node that converts.",
        )

    def _cut_off(self, name: str, expected: int, found: int) -> PeriodicError:
        return PeriodicError(
            f"The checkpoint's file {name} is cut off.",
            feature=SLUG,
            tree=str(self._folder),
            expected=f"{expected:,} bytes or more",
            found=f"{found:,} bytes",
            remedy="Copy the file again from where the checkpoint was written.",
        )
