"""Folders of this machine as tar archives, streamed: to the agent, and back from it."""

from __future__ import annotations

import asyncio
import os
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

PIECE_BYTES = 1 << 18


async def packed(folder: Path) -> AsyncIterator[bytes]:
    """A tar archive of a folder's content, as it is made."""
    source, sink = os.pipe()
    packing = asyncio.ensure_future(asyncio.to_thread(_pack, folder, sink))
    with os.fdopen(source, "rb", buffering=0) as stream:
        while piece := await asyncio.to_thread(stream.read, PIECE_BYTES):
            yield piece
    await packing


def _pack(folder: Path, sink: int) -> None:
    with os.fdopen(sink, "wb") as stream, tarfile.open(fileobj=stream, mode="w|") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, arcname=path.name)


async def unpacked(pieces: AsyncIterator[bytes], folder: Path) -> list[str]:
    """Unpack an archive that arrives in pieces; names of members that would lead elsewhere."""
    folder.mkdir(parents=True, exist_ok=True)
    source, sink = os.pipe()
    unpacking = asyncio.ensure_future(asyncio.to_thread(_unpack, source, folder))
    try:
        with os.fdopen(sink, "wb", buffering=0) as stream:
            async for piece in pieces:
                await asyncio.to_thread(_write_all, stream, piece)
    except BrokenPipeError:
        pass  # unpacking failed: its own error says why
    return await unpacking


def _write_all(stream, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[stream.write(view) :]


def _unpack(source: int, folder: Path) -> list[str]:
    left_out: list[str] = []

    def safe(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        try:
            return tarfile.data_filter(member, path)
        except tarfile.FilterError:
            left_out.append(member.name)
            return None

    with os.fdopen(source, "rb") as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        archive.extractall(folder, filter=safe)
    return left_out
