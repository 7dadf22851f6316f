"""One rank's share of a checkpoint, written wave by wave with Megatron's own file writer."""

from __future__ import annotations

import logging
import queue
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from miles_periodic.compat.bindings.staging_memory import StagingMemory, copy_bytes
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.values import CheckpointEntry, CheckpointWaves

logger = logging.getLogger(__name__)

#: Megatron's bucket: path, name in the metadata, (serialised objects, tensors).
Bucket = tuple[str, str, tuple[list[Any], list[Any]]]
WriteFile = Callable[[int, Bucket], list[Any]]

_FILE_NAME = re.compile(r"(?P<group>.*?)(?P<number>\d+)(?P<suffix>\.[^.]*)", re.DOTALL)


class FileNotWritten(Exception):
    """Megatron's writer gave up on one file; the message names it and the cause."""


@dataclass(frozen=True, slots=True)
class Part:
    """One entry of a bucket: what the file writer is given for it."""

    bucket: int
    item: Any
    data: Any
    is_tensor: bool

    @property
    def staged_bytes(self) -> int:
        return copy_bytes(self.data) if self.is_tensor else 0

    @property
    def num_bytes(self) -> int:
        if self.is_tensor:
            return self.data.numel() * self.data.element_size()
        return self.data.getbuffer().nbytes


class Share:
    """What one rank writes: Megatron's buckets, taken apart into entries."""

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self.buckets = tuple(buckets)
        self.parts = tuple(_parts(self.buckets))
        self._names = [_FILE_NAME.fullmatch(name) for _, name, _ in self.buckets]

    @property
    def entries(self) -> tuple[CheckpointEntry, ...]:
        return tuple(
            CheckpointEntry(
                _name(part.item), part.num_bytes, part.staged_bytes, self._group(part.bucket)
            )
            for part in self.parts
        )

    def whole(self) -> CheckpointWaves:
        """Megatron's own files, as one wave without a bound."""
        files = [
            tuple(i for i, part in enumerate(self.parts) if part.bucket == bucket)
            for bucket in range(len(self.buckets))
        ]
        return CheckpointWaves((tuple(files),))

    def file(self, number: int, indices: Sequence[int], tensors: dict[int, Any]) -> Bucket:
        """The bucket of a file, named as Megatron would name the file of that number."""
        folder_and_name, name, _ = self.buckets[self.parts[indices[0]].bucket]
        folder = folder_and_name.removesuffix(name)
        own = self._numbered(self.parts[indices[0]].bucket, number)
        objects = [(p.item, p.data) for i in indices if not (p := self.parts[i]).is_tensor]
        staged = [(self.parts[i].item, tensors[i]) for i in indices if i in tensors]
        return folder + own, own, (objects, staged)

    def _group(self, bucket: int) -> str:
        match = self._names[bucket]
        return match["group"] if match else self.buckets[bucket][1]

    def _numbered(self, bucket: int, number: int) -> str:
        match = self._names[bucket]
        if match is None:
            raise _error(f"a file name that ends in its number, found {self.buckets[bucket][1]!r}")
        return f"{match['group']}{number}{match['suffix']}"


def _parts(buckets: Sequence[Bucket]):
    for number, (_, _, (objects, tensors)) in enumerate(buckets):
        yield from (Part(number, item, data, False) for item, data in objects)
        yield from (Part(number, item, data, True) for item, data in tensors)


def _name(item: Any) -> str:
    offset = getattr(item.index, "offset", None)
    return f"{item.index.fqn} at {tuple(offset)}" if offset and any(offset) else item.index.fqn


def checked(plan: CheckpointWaves, share: Share) -> CheckpointWaves:
    """`plan`, where every entry stands in it once and no wave copies more than its bound allows."""
    listed = [index for wave in plan.waves for file in wave for index in file]
    if sorted(listed) != list(range(len(share.parts))):
        raise _error(f"each of {len(share.parts)} entries once, found {len(listed)} places")
    if any(not file for wave in plan.waves for file in wave):
        raise _error("files that hold something, found an empty one")
    for number, wave in enumerate(plan.waves):
        sizes = [share.parts[index].staged_bytes for file in wave for index in file]
        copied = [size for size in sizes if size]
        if plan.staging_bytes is not None and len(copied) > 1 and sum(copied) > plan.staging_bytes:
            raise _error(
                f"at most {plan.staging_bytes} bytes in wave {number}, found {sum(copied)}"
            )
    return plan


def _error(expected: str) -> PeriodicError:
    return PeriodicError(
        f"The plan of a checkpoint's waves does not fit: expected {expected}.",
        target="checkpoint_waves",
        remedy="Repair the feature that answers checkpoint_waves, or take it out of --plugins.",
    )


def write_in_waves(share: Share, plan: CheckpointWaves, write_file: WriteFile) -> dict[int, list]:
    """Stage and write one wave after another; what Megatron's writer returns, per bucket.

    The files of a wave are written side by side, one thread each, on every tree: no process is
    forked from one that holds a GPU. Raises the first error of a wave after the wave's other files
    were closed; later waves are not begun.
    """
    written: dict[int, list] = {number: [] for number in range(len(share.buckets))}
    needs = [
        sum(share.parts[index].staged_bytes for file in wave for index in file)
        for wave in plan.waves
    ]
    bound = plan.staging_bytes
    shared = max((need for need in needs if bound is None or need <= bound), default=0)
    num_threads = max((len(wave) for wave in plan.waves), default=1)
    number = 0
    with StagingMemory(shared) as memory, ThreadPoolExecutor(num_threads) as pool:
        for wave in plan.waves:
            files = _staged_files(share, wave, number, memory)
            for results in pool.map(write_file, range(number, number + len(files)), files):
                written[0] += results
            number += len(files)
            del files
        _tell(sum(needs), len(plan.waves), memory.peak_bytes)
    return written


def _staged_files(
    share: Share, wave: Sequence[Sequence[int]], first: int, memory: StagingMemory
) -> list[Bucket]:
    indices = [i for file in wave for i in file if share.parts[i].is_tensor]
    staged = memory.stage([share.parts[i].data for i in indices])
    tensors = dict(zip(indices, staged, strict=True))
    return [share.file(first + n, file, tensors) for n, file in enumerate(wave)]


def _tell(copied_bytes: int, num_waves: int, peak_bytes: int) -> None:
    logger.info(
        "checkpoint written in %d waves: %d bytes copied to the host, at most %d at once",
        num_waves,
        copied_bytes,
        peak_bytes,
    )


def file_writer(writer: Any) -> WriteFile:
    """Megatron's own writer of one file, called in this process; raises what stopped it."""
    transforms = [writer.transforms] if hasattr(writer, "transforms") else []
    more = {"use_msc": True} if writer.use_msc else {}

    def write(number: int, bucket: Bucket) -> list[Any]:
        outcomes: queue.SimpleQueue = queue.SimpleQueue()
        pending: queue.Queue = queue.Queue()
        pending.put(number)
        writer.write_preloaded_data(transforms, number, bucket, outcomes, pending, True, **more)
        _, outcome = outcomes.get_nowait()
        if isinstance(outcome, BaseException):
            cause = _first_cause(outcome)
            raise FileNotWritten(
                f"{bucket[0]} cannot be written: {type(cause).__name__}: {cause}"
            ) from outcome
        return outcome

    return write


def _first_cause(error: BaseException) -> BaseException:
    """What was raised first: torch's zip writer covers a full disk with a complaint of its own."""
    while error.__context__ is not None:
        error = error.__context__
    return error
