"""Which tensors of a checkpoint are staged together, and which of them share a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from miles_periodic.hooks.values import CheckpointEntry, CheckpointWaves


def plan_waves(
    entries: Sequence[CheckpointEntry], *, staging_bytes: int, num_writers: int
) -> CheckpointWaves:
    """Waves that stage at most `staging_bytes` at once, unless one entry alone is larger.

    Such entries come first, the largest first, each in a wave of its own, so that no other memory
    is held meanwhile. Where an entry needs no copy it costs no memory and is written in the first
    wave of the others. A wave's files are at most `num_writers`, filled evenly; entries of
    different groups share none. ValueError where a bound is below 1.
    """
    if staging_bytes < 1 or num_writers < 1:
        raise ValueError(f"staging_bytes={staging_bytes} and num_writers={num_writers} must be ≥ 1")
    by_size = sorted(range(len(entries)), key=lambda i: (-entries[i].staged_bytes, i))
    alone = [[i] for i in by_size if entries[i].staged_bytes > staging_bytes]
    shared = _first_fit(
        [i for i in by_size if 0 < entries[i].staged_bytes <= staging_bytes], entries, staging_bytes
    )
    in_place = [i for i in range(len(entries)) if entries[i].staged_bytes == 0]
    if in_place:
        shared = [[*in_place, *(shared[0] if shared else ())], *shared[1:]]
    waves = (_files(sorted(wave), entries, num_writers) for wave in (*alone, *shared))
    return CheckpointWaves(tuple(waves), staging_bytes)


def oversized(entries: Iterable[CheckpointEntry], staging_bytes: int) -> list[CheckpointEntry]:
    """The entries that no wave can hold within the bound."""
    return [entry for entry in entries if entry.staged_bytes > staging_bytes]


def _first_fit(
    by_size: Sequence[int], entries: Sequence[CheckpointEntry], staging_bytes: int
) -> list[list[int]]:
    """Each entry, the largest first, into the first wave that has room for it."""
    waves: list[list[int]] = []
    room: list[int] = []
    for index in by_size:
        num_bytes = entries[index].staged_bytes
        wave = next((w for w, left in enumerate(room) if left >= num_bytes), len(waves))
        if wave == len(waves):
            waves.append([])
            room.append(staging_bytes)
        waves[wave].append(index)
        room[wave] -= num_bytes
    return waves


def _files(
    wave: Sequence[int], entries: Sequence[CheckpointEntry], num_writers: int
) -> tuple[tuple[int, ...], ...]:
    """The files of one wave: of each group at most its share of the writers."""
    groups: dict[str, list[int]] = {}
    for index in wave:
        groups.setdefault(entries[index].group, []).append(index)
    share = max(1, num_writers // max(1, len(groups)))
    files = [file for group in groups.values() for file in _dealt(group, entries, share)]
    return tuple(files)


def _dealt(
    group: Sequence[int], entries: Sequence[CheckpointEntry], num_files: int
) -> list[tuple[int, ...]]:
    files: list[list[int]] = [[] for _ in range(num_files)]
    sizes = [0] * num_files
    for index in sorted(group, key=lambda i: (-entries[i].num_bytes, i)):
        smallest = sizes.index(min(sizes))
        files[smallest].append(index)
        sizes[smallest] += entries[index].num_bytes
    return [tuple(sorted(file)) for file in files if file]
