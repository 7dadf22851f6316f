"""The checksums that torch.save left beside tensors, against what tasks have read in pieces.

An archive has a CRC-32 of each tensor's whole storage, of which a task reads stretches. These
carry checksums of their own, which combine to that of the whole, so that no byte is read twice for
it. Positions and sizes are bytes of a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding.settings import SLUG


class Storage(NamedTuple):
    """What a chunk's tensor lies in. crc32: 0 where the writer has left it out."""

    key: str
    file: str
    start: int
    num_bytes: int
    crc32: int


class Stretch(NamedTuple):
    """Neighbouring bytes of a storage that were read."""

    start: int
    num_bytes: int
    crc32: int


class StorageRead(NamedTuple):
    """stretches: in order, apart from each other."""

    storage: Storage
    stretches: tuple[Stretch, ...]


class StretchesRead:
    """What a worker has read since it was last asked."""

    def __init__(self) -> None:
        self._crc32, _ = _functions()
        self._stretches: dict[Storage, list[Stretch]] = {}

    def add(self, storage: Storage, start: int, data: memoryview) -> None:
        """Note bytes of a storage, the first of them at `start`."""
        stretches = self._stretches.setdefault(storage, [])
        if storage.crc32:
            stretches.append(Stretch(start, len(data), self._crc32(data)))

    def take(self) -> tuple[StorageRead, ...]:
        """All of it, by storage; what is added from now on is new."""
        taken, self._stretches = self._stretches, {}
        return tuple(
            StorageRead(storage, joined(stretches)) for storage, stretches in taken.items()
        )


class SourceChecksums:
    """What all tasks have read. checked_bytes: of storages that are as they were written.

    unchecked_bytes: of those without a checksum.
    """

    def __init__(self) -> None:
        self.checked_bytes = 0
        self.unchecked_bytes = 0
        self._done: set[tuple[str, int]] = set()
        self._pending: dict[Storage, tuple[Stretch, ...]] = {}

    def add(self, reads: Iterable[StorageRead]) -> None:
        """Raises PeriodicError for a storage that is known whole and is not what was written."""
        for storage, stretches in reads:
            if (storage.file, storage.start) in self._done:
                continue
            if not storage.crc32:
                self._finish(storage)
                self.unchecked_bytes += storage.num_bytes
                continue
            stretches = joined((*self._pending.get(storage, ()), *stretches))
            self._pending[storage] = stretches
            if not list(_gaps(storage, stretches)):
                _check(storage, stretches[0])
                self._finish(storage)
                self.checked_bytes += storage.num_bytes

    def left(self) -> list[tuple[Storage, list[tuple[int, int]]]]:
        """Storages of which not all was read, such as padding, and (start, bytes) of the rest."""
        return [
            (storage, list(_gaps(storage, stretches)))
            for storage, stretches in self._pending.items()
        ]

    def _finish(self, storage: Storage) -> None:
        self._done.add((storage.file, storage.start))
        self._pending.pop(storage, None)


def joined(stretches: Iterable[Stretch]) -> tuple[Stretch, ...]:
    """Neighbours as one stretch; of stretches that overlap, what was read again is left out."""
    _, combine = _functions()
    result: list[Stretch] = []
    for stretch in sorted(stretches, key=lambda stretch: (stretch.start, -stretch.num_bytes)):
        start, num_bytes, crc32 = result[-1] if result else Stretch(stretch.start, 0, 0)
        if stretch.start > start + num_bytes or not result:
            result.append(stretch)
        elif stretch.start == start + num_bytes:
            both = combine(crc32, stretch.crc32, stretch.num_bytes)
            result[-1] = Stretch(start, num_bytes + stretch.num_bytes, both)
    return tuple(result)


def _gaps(storage: Storage, stretches: Sequence[Stretch]) -> Iterator[tuple[int, int]]:
    at = storage.start
    for start, num_bytes, _ in stretches:
        if start > at:
            yield at, start - at
        at = start + num_bytes
    end = storage.start + storage.num_bytes
    if end > at:
        yield at, end - at


def _check(storage: Storage, whole: Stretch) -> None:
    if whole.crc32 != storage.crc32:
        raise PeriodicError(
            f"{storage.key} in {storage.file} is not what was written there.",
            feature=SLUG,
            target=f"{storage.num_bytes:,} bytes from {storage.start:,}",
            expected=f"CRC-32 {storage.crc32:08x}",
            found=f"{whole.crc32:08x}",
            remedy="Copy the file again from where the checkpoint was written, remove what this "
            "run has left beside the target, and convert again.",
        )


def _functions() -> tuple[Any, Any]:
    """CRC-32 of bytes, and of two pieces from those of each."""
    try:
        from isal import isal_zlib
    except ImportError as error:
        raise PeriodicError(
            "The package isal is not installed.",
            feature=SLUG,
            remedy="Install miles-periodic[reshard].",
        ) from error
    return isal_zlib.crc32, isal_zlib.crc32_combine
