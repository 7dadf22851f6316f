"""A `torch_dist` checkpoint's metadata: tensors, their chunks, and where each chunk lies.

Read without torch and without Megatron. Shapes and offsets are elements, file positions bytes.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding import restricted_pickle
from miles_periodic.plugins.fast_resharding.boxes import Box, tiling_fault
from miles_periodic.plugins.fast_resharding.element_types import ElementType, element_type
from miles_periodic.plugins.fast_resharding.restricted_pickle import Record
from miles_periodic.plugins.fast_resharding.settings import SLUG

METADATA = ".metadata"
LATEST = "latest_checkpointed_iteration.txt"
_DCP = "torch.distributed.checkpoint"
KNOWN = {
    **restricted_pickle.as_records(
        *(
            f"{_DCP}.metadata.{name}"
            for name in (
                "BytesStorageMetadata",
                "ChunkStorageMetadata",
                "Metadata",
                "MetadataIndex",
                "StorageMeta",
                "TensorProperties",
                "TensorStorageMetadata",
                "_MEM_FORMAT_ENCODING",
            )
        ),
        *(
            f"{_DCP}.planner.{name}"
            for name in (
                "BytesIOWriteData",
                "SavePlan",
                "TensorWriteData",
                "WriteItem",
                "WriteItemType",
            )
        ),
        f"{_DCP}.filesystem._StorageInfo",
        f"{_DCP}.filesystem._StoragePrefix",
        "megatron.core.dist_checkpointing.strategies.torch.MCoreMetadata",
        "megatron.core.dist_checkpointing.strategies.torch.MCoreSavePlan",
        "pathlib.Path",
        "pathlib.PosixPath",
        "pathlib._local.PosixPath",
        "torch.serialization._get_layout",
    ),
}
"""Every class in `.metadata` of torch 2.4 and later under Megatron-core 0.15 to 0.19."""


@dataclass(frozen=True)
class Chunk:
    """A box of a tensor, and the item of a file that holds it (a torch.save archive)."""

    box: Box
    file: str
    item_offset: int
    item_bytes: int


@dataclass(frozen=True)
class SourceTensor:
    key: str
    shape: tuple[int, ...]
    element: ElementType
    chunks: tuple[Chunk, ...]

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * self.element.itemsize


@dataclass(frozen=True)
class Checkpoint:
    """tensors: by key. objects: keys of what is no tensor. digest: of the metadata file."""

    folder: Path
    tensors: Mapping[str, SourceTensor]
    objects: tuple[str, ...]
    digest: str


def checkpoint_folder(source: Path) -> Path:
    """`source`, or the newest iteration in it where it is the folder of a whole run."""
    if (source / METADATA).is_file():
        return source
    latest = source / LATEST
    if latest.is_file():
        word = latest.read_text(encoding="utf-8", errors="replace").strip()
        folder = source / (f"iter_{int(word):07d}" if word.isdecimal() else word)
        if (folder / METADATA).is_file():
            return folder
    raise PeriodicError(
        f"{source} is no torch_dist checkpoint.",
        feature=SLUG,
        expected=f"a folder with {METADATA} and .distcp files, or the folder of its iterations",
        found="nothing there" if not source.exists() else f"no {METADATA}",
        remedy="Name the folder that Megatron wrote, such as CHECKPOINTS/iter_0000100.",
    )


def read_checkpoint(source: Path) -> Checkpoint:
    """The metadata of the checkpoint in `source`; no file of tensors is opened."""
    folder = checkpoint_folder(source)
    _check_backend(folder)
    data = (folder / METADATA).read_bytes()
    where = str(folder / METADATA)
    metadata = restricted_pickle.load(data, KNOWN, where=where)
    try:
        places = {(i.get("fqn"), _offset(i)): s for i, s in metadata.get("storage_data").items()}
        entries = metadata.get("state_dict_metadata").items()
        tensors = {k: _tensor(k, e, places) for k, e in entries if e.get("chunks") is not None}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PeriodicError(
            f"{where} is not laid out as torch.distributed.checkpoint writes it.",
            feature=SLUG,
            found=f"{type(error).__name__}: {error}",
            remedy="Write the checkpoint again with --ckpt-format torch_dist.",
        ) from error
    objects = tuple(sorted(k for k, e in entries if e.get("chunks") is None))
    return Checkpoint(folder, tensors, objects, hashlib.sha256(data).hexdigest())


def check_whole(checkpoint: Checkpoint, keys: Iterable[str]) -> None:
    """Refuse tensors whose chunks leave a gap, overlap, lie in one place or beyond a file's end."""
    ends: dict[str, int] = {}
    places: set[tuple[str, int]] = set()
    for key in keys:
        tensor = checkpoint.tensors[key]
        fault = tiling_fault(tensor.shape, [chunk.box for chunk in tensor.chunks])
        if fault:
            raise PeriodicError(
                f"The chunks of {key} do not make up the tensor: {fault}.",
                feature=SLUG,
                tree=str(checkpoint.folder),
                expected=f"every element of {list(tensor.shape)} once",
                remedy="Write the checkpoint again; a rank's part of it is missing or doubled.",
            )
        for chunk in tensor.chunks:
            place = (chunk.file, chunk.item_offset)
            if place in places:
                raise _shared(checkpoint, key, chunk)
            places.add(place)
            ends[chunk.file] = max(ends.get(chunk.file, 0), chunk.item_offset + chunk.item_bytes)
    for file, end in sorted(ends.items()):
        _check_length(checkpoint.folder / file, end)


def _shared(checkpoint: Checkpoint, key: str, chunk: Chunk) -> PeriodicError:
    return PeriodicError(
        f"The chunk of {key} at {list(chunk.box.offsets)} lies where another chunk does.",
        feature=SLUG,
        tree=str(checkpoint.folder),
        target=key,
        expected="a place of its own for every chunk",
        found=f"{chunk.file} from byte {chunk.item_offset:,} for two of them",
        remedy="Write the checkpoint again; its metadata are damaged.",
    )


def _check_length(path: Path, end: int) -> None:
    if not path.is_file():
        raise PeriodicError(
            f"The checkpoint's file {path.name} is missing.",
            feature=SLUG,
            tree=str(path.parent),
            remedy="Copy every .distcp file of the checkpoint into its folder.",
        )
    if path.stat().st_size < end:
        raise PeriodicError(
            f"The checkpoint's file {path.name} is cut off.",
            feature=SLUG,
            tree=str(path.parent),
            expected=f"{end:,} bytes or more",
            found=f"{path.stat().st_size:,} bytes",
            remedy="Copy the file again from where the checkpoint was written.",
        )


def _check_backend(folder: Path) -> None:
    path = folder / "metadata.json"
    if not path.is_file():
        return
    try:
        backend = json.loads(path.read_text(encoding="utf-8")).get("sharded_backend")
    except (AttributeError, ValueError) as error:
        raise PeriodicError(
            f"{path} is not what Megatron writes: {error}.",
            feature=SLUG,
            remedy="Copy the checkpoint again from where it was written; this file is damaged.",
        ) from error
    if backend != "torch_dist":
        raise PeriodicError(
            f"{folder} is written in another format than torch_dist.",
            feature=SLUG,
            expected="torch_dist",
            found=str(backend),
            remedy="Save with --ckpt-format torch_dist.",
        )


def _offset(index: Record) -> tuple[int, ...] | None:
    offset = index.get("offset")
    return None if offset is None else tuple(offset)


def _tensor(key: str, entry: Record, places: Mapping) -> SourceTensor:
    properties = entry.get("properties")
    name = properties.get("dtype") or properties.get("state")[0]
    chunks = tuple(_chunk(key, chunk, places) for chunk in entry.get("chunks"))
    return SourceTensor(key, _numbers(entry.get("size")), element_type(name, key), chunks)


def _numbers(values: Iterable) -> tuple[int, ...]:
    return tuple(operator.index(value) for value in values)


def _chunk(key: str, chunk: Record, places: Mapping) -> Chunk:
    offsets = _numbers(chunk.get("offsets"))
    place = places.get((key, offsets))
    if place is None:
        raise PeriodicError(
            f"The checkpoint does not say where the chunk of {key} at {list(offsets)} lies.",
            feature=SLUG,
            target=key,
            remedy="Write the checkpoint again; its metadata is not complete.",
        )
    if place.get("transform_descriptors"):
        raise PeriodicError(
            f"{key} is stored in a transformed form.",
            feature=SLUG,
            expected="plain tensors",
            found=str(list(place.get("transform_descriptors"))),
            remedy="Save the checkpoint without compression.",
        )
    start, num_bytes = _numbers((place.get("offset"), place.get("length")))
    file = place.get("relative_path")
    if not isinstance(file, str) or start < 0 or num_bytes < 1:
        raise ValueError(f"{num_bytes} bytes from {start} of {file!r} are no item of a file")
    return Chunk(Box(offsets, _numbers(chunk.get("sizes"))), file, start, num_bytes)
