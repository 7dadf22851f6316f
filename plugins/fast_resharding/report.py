"""What a conversion tells: how far it is, and what it did in the end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """doing: `reading back` (a resumed run), `converting` or `verifying`. Bytes: the target's."""

    doing: str
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class Report:
    """What a conversion did. Bytes are of tensors, but for read_bytes, which are of files.

    resumed_bytes: already there from an earlier run. copied_bytes: what could not be read in
    place. fetched_bytes: what crossed between nodes of which none held all that was needed.
    checked_bytes, unchecked_bytes: of the checkpoint's tensors that were read, with what lies
    beside them in their storages: those whose checksum there was right, and those that have none.
    worker_memory_bytes: bound of what each worker held.
    """

    source: str
    target: str
    family: str
    num_tensors: int
    num_shards: int
    num_tasks: int
    num_workers: int
    target_bytes: int
    converted_bytes: int
    padding_bytes: int
    ignored_bytes: int
    read_bytes: int
    copied_bytes: int
    fetched_bytes: int
    resumed_bytes: int
    checked_bytes: int
    unchecked_bytes: int
    worker_memory_bytes: int
    verified: bool
    seconds: float
