"""Writes a `torch_dist` checkpoint as a job of many ranks would, from one process.

Tensors are cut into chunks along given axes; chunks go to the files of ranks in turn. The
metadata are torch's own classes, the items torch.save's own archives.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any


class TorchDistWriter:
    """Use it in a `with` block; the metadata are written at its end. num_files: ranks."""

    def __init__(self, folder: Path, num_files: int = 2) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._files = [(folder / f"__{n}_0.distcp").open("wb") for n in range(num_files)]
        self._entries: dict[str, Any] = {}
        self._places: dict[Any, Any] = {}
        self._num_items = 0

    def __enter__(self) -> TorchDistWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        for file in self._files:
            file.close()
        if exception[0] is None:
            self._write_metadata()

    def add(self, key: str, tensor: Any, cuts: Sequence[int] = ()) -> None:
        """A tensor in `cuts[i]` equal chunks along each axis i; 1 for axes that are not named."""

        def part(box: Sequence[slice]) -> Any:
            return tensor[tuple(box)]

        self.add_made(key, tuple(tensor.shape), tensor.dtype, part, cuts)

    def add_made(
        self,
        key: str,
        shape: Sequence[int],
        dtype: Any,
        make: Callable[[Sequence[slice]], Any],
        cuts: Sequence[int] = (),
    ) -> None:
        """As `add`, of a tensor that never exists as a whole: `make` gives each chunk."""
        from torch.distributed.checkpoint.metadata import (
            ChunkStorageMetadata,
            TensorProperties,
            TensorStorageMetadata,
        )

        cuts = (*cuts, *(1 for _ in shape[len(cuts) :]))
        sizes = _size([n // c for n, c in zip(shape, cuts, strict=True)])
        chunks = []
        for nth in product(*(range(count) for count in cuts)):
            offsets = _size([n * size for n, size in zip(nth, sizes, strict=True)])
            box = [slice(a, a + n) for a, n in zip(offsets, sizes, strict=True)]
            chunks.append(ChunkStorageMetadata(offsets, sizes))
            # A view would be saved with all of what it views.
            self._item(key, offsets, make(box).clone())
        properties = TensorProperties(dtype=dtype)
        self._entries[key] = TensorStorageMetadata(properties, _size(shape), chunks)

    def add_object(self, key: str, value: Any) -> None:
        """Something that is no tensor."""
        from torch.distributed.checkpoint.metadata import BytesStorageMetadata

        self._item(key, None, value)
        self._entries[key] = BytesStorageMetadata()

    def _item(self, key: str, offsets: Any, value: Any) -> None:
        import torch
        from torch.distributed.checkpoint.filesystem import _StorageInfo
        from torch.distributed.checkpoint.metadata import MetadataIndex

        file = self._files[self._num_items % len(self._files)]
        start, archive = file.tell(), io.BytesIO()
        torch.save(value, archive)
        file.write(archive.getbuffer())
        place = _StorageInfo(Path(file.name).name, start, file.tell() - start)
        self._places[MetadataIndex(key, offsets)] = place
        self._num_items += 1

    def _write_metadata(self) -> None:
        from torch.distributed.checkpoint.metadata import Metadata

        metadata = Metadata(self._entries, storage_data=self._places)
        (self._folder / ".metadata").write_bytes(pickle.dumps(metadata))
        backend = {"sharded_backend": "torch_dist", "sharded_backend_version": 1}
        (self._folder / "metadata.json").write_text(json.dumps(backend), encoding="utf-8")


def _size(numbers: Sequence[int]) -> Any:
    import torch

    return torch.Size(numbers)
