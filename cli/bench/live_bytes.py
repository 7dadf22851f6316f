"""The bytes of all tensors that are alive at once on a CPU, whose allocator does not say it.

Imports torch at its top, so it is imported only where a bench has it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class LiveBytes(TorchDispatchMode):
    """Inside it, `peak` is the most bytes that storages made inside it held at one time.

    known: tensors whose storages do not count.
    """

    def __init__(self, known: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.peak = self.now = 0
        self._seen = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self._take(tensor.untyped_storage())
        return result

    def _take(self, storage: torch.UntypedStorage) -> None:
        """Count a storage until it is gone."""
        address, size = storage._cdata, storage.nbytes()
        if address in self._seen:
            return
        self._seen.add(address)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._give_back, address, size)

    def _give_back(self, address: int, size: int) -> None:
        self._seen.discard(address)
        self.now -= size
