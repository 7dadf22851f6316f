"""Pickles of checkpoints, read as inert data: nothing of them is imported or called.

Every class that a checkpoint may name is listed; it becomes a `Record` of what was stored. A name
that is not listed is refused, so that a checkpoint cannot run code.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding.element_types import ELEMENT_TYPES
from miles_periodic.plugins.fast_resharding.settings import SLUG


class Record:
    """An object of a listed class: the arguments it was made with and the state it was given."""

    kind = ""

    def __new__(cls, *arguments: Any) -> Record:
        record = super().__new__(cls)
        record.__dict__.update(arguments=arguments)
        return record

    def __init__(self, *arguments: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state if isinstance(state, dict) else {"state": state})

    def __hash__(self) -> int:
        return id(self)

    def get(self, name: str, otherwise: Any = None) -> Any:
        """What the object's attribute held."""
        return self.__dict__.get(name, otherwise)


def record_class(kind: str) -> type[Record]:
    """The class that stands in for `kind`, a dotted name."""
    return type(kind.rpartition(".")[2], (Record,), {"kind": kind})


def as_records(*kinds: str) -> dict[str, Any]:
    """Known names for `load`, each read as a `Record`."""
    return {kind: record_class(kind) for kind in kinds}


PLAIN: dict[str, Any] = {
    "torch.Size": tuple,
    "collections.OrderedDict": dict,
    "builtins.set": set,
    "builtins.frozenset": frozenset,
    **{f"torch.{name}": name for name in ELEMENT_TYPES},
}
"""Values without behaviour; an element type is read as its name."""


def load(
    data: bytes,
    known: Mapping[str, Any],
    *,
    where: str,
    storage: Callable[[tuple], Any] | None = None,
) -> Any:
    """Unpickle `data` with nothing but `PLAIN` and `known`, a value or callable per dotted name.

    where: names the file in errors. storage: builds what a persistent id stands for; None
    refuses them. Raises PeriodicError for an unlisted name and for damaged data.
    """
    try:
        return _Reader(io.BytesIO(data), {**PLAIN, **known}, where, storage).load()
    except PeriodicError:
        raise
    except Exception as error:
        raise PeriodicError(
            f"{where} is not a readable pickle: {error or type(error).__name__}.",
            feature=SLUG,
            remedy="Copy the checkpoint again from where it was written; this file is damaged.",
        ) from error


class _Reader(pickle.Unpickler):
    def __init__(
        self,
        file: io.BytesIO,
        known: Mapping[str, Any],
        where: str,
        storage: Callable[[tuple], Any] | None,
    ) -> None:
        super().__init__(file)
        self._known = known
        self._where = where
        self._storage = storage

    def find_class(self, module: str, name: str) -> Any:
        dotted = f"{module}.{name}"
        if dotted not in self._known:
            raise PeriodicError(
                f"{self._where} names {dotted}, which no checkpoint that we know holds.",
                feature=SLUG,
                expected="records of torch.distributed.checkpoint and tensors",
                found=dotted,
                remedy="Convert only checkpoints that you trust; if this one is of a newer "
                "Megatron, report the name.",
            )
        return self._known[dotted]

    def persistent_load(self, identity: Any) -> Any:
        if self._storage is None:
            raise pickle.UnpicklingError("a persistent id where none belongs")
        return self._storage(identity)
