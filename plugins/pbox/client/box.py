"""One sandbox, from the client's side: commands and files."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import aiohttp

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox import wire
from miles_periodic.plugins.pbox.client import handover, local_trees
from miles_periodic.plugins.pbox.client.way import Way
from miles_periodic.plugins.pbox.client.wire_errors import failure
from miles_periodic.plugins.pbox.outcomes import (
    InfrastructureFailure,
    Result,
    SandboxGone,
    outcome_from_json,
)

#: What a command's own time limit is given beyond it, for the way there and back: the node's
#: clock decides, and this one only where the node no longer does.
GRACE_SECONDS = 30.0
FILE_SECONDS = 300.0
PIECE_BYTES = 1 << 18


class Box:
    """A sandbox of the agent. Made by `Host`."""

    def __init__(self, name: str, image: str, way: Way) -> None:
        self.name = name
        self.image = image
        self._way = way
        self._path = f"/v1/sandboxes/{name}"

    def over_http(self) -> Box:
        """The same sandbox, its files sent as they are to an agent on another machine."""
        return Box(self.name, self.image, replace(self._way, handover=None))

    async def exec(
        self,
        words: Sequence[str],
        *,
        stdin: bytes | AsyncIterator[bytes] = b"",
        environment: Mapping[str, str] | None = None,
        folder: str = "",
        user: int = 1000,
        timeout_seconds: float = 60.0,
        output_limit_bytes: int = 1 << 20,
        on_output: Callable[[str, bytes], None] | None = None,
    ) -> Result:
        """Run a command to its end.

        words: program and arguments; no shell reads them. folder: below /work, or absolute.
        on_output: gets ("stdout" | "stderr", piece) as it comes; the result has it all the same.
        Raises InfrastructureFailure where the end is not known or not the command's doing.
        """
        header = {
            "words": list(words),
            "environment": dict(environment or {}),
            "folder": folder,
            "user_id": user,
            "timeout_seconds": timeout_seconds,
            "output_limit_bytes": output_limit_bytes,
        }
        body = _body(wire.packed_header(header), stdin)
        what, bound_seconds = f"end {list(words)[:1]}", timeout_seconds + GRACE_SECONDS
        written = {"stdout": bytearray(), "stderr": bytearray()}
        async with self._way.asked(
            "POST", f"{self._path}/exec", what, bound_seconds, data=body
        ) as response:
            result = await _read_frames(response, written, on_output)
        seconds, lives = result.pop("seconds"), result.pop("lives")
        outcome = outcome_from_json(result)
        return Result(outcome, bytes(written["stdout"]), bytes(written["stderr"]), seconds, lives)

    async def write_bytes(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Replace a file below /work. Raises OSError where it cannot be written there."""
        async with self._way.file_to_write(self.name, path, mode, FILE_SECONDS) as descriptor:
            if descriptor is not None:
                await handover.fill(descriptor, data)
            else:
                await self._put("file", f"take {path}", data, path=path, mode=f"{mode:o}")

    async def read_bytes(self, path: str) -> bytes:
        """A file below /work. Raises OSError where it is none."""
        async with self._way.file_to_read(self.name, path, FILE_SECONDS) as opened:
            if opened is not None:
                return await handover.content(*opened)
            async with self._get("file", path) as response:
                return await response.read()

    async def write_text(self, path: str, text: str) -> None:
        """Replace a file below /work, as UTF-8."""
        await self.write_bytes(path, text.encode())

    async def read_text(self, path: str) -> str:
        """A file below /work, as UTF-8."""
        return (await self.read_bytes(path)).decode()

    async def upload(self, local: str | Path, path: str) -> None:
        """Copy a file or a folder of this machine to `path` below /work, streamed.

        A file is replaced when it has arrived whole; of a folder, each of its files is. Raises
        PeriodicError for what has no size of its own, as a pipe.
        """
        local = Path(local)
        if local.is_dir():
            await self._put("tree", f"take {local}", local_trees.packed(local), path=path)
            return
        if local.exists() and not local.is_file():
            raise PeriodicError(
                f"{local} is neither a file nor a folder, so nothing says how much it holds.",
                remedy="Read it, and give what it held to write_bytes.",
            )
        with local.open("rb") as file:
            found = os.fstat(file.fileno())
            await self._upload_file(file, path, found.st_mode & 0o777, found.st_size)

    async def download(self, path: str, local: str | Path) -> None:
        """Copy a file below /work to `local`, which is replaced when it has arrived whole."""
        local = Path(local)
        staged = local.with_name(f".{local.name}.{secrets.token_hex(4)}")
        try:
            await self._save(path, staged)
            staged.rename(local)
        finally:
            staged.unlink(missing_ok=True)

    async def download_tree(self, path: str, local: str | Path) -> list[str]:
        """Copy a folder below /work into the folder `local`; names of links left out.

        A link that leads out of `local` is left out: it was made by code nobody trusts.
        """
        async with self._get("tree", path) as response:
            pieces = response.content.iter_chunked(PIECE_BYTES)
            return await local_trees.unpacked(pieces, Path(local))

    async def snapshot(self) -> str:
        """Keep what this sandbox has written so far, outside of /tmp and /dev/shm; a name for it.

        `Host.start(snapshot=name)` begins with it, any number of times. It lasts as long as the
        connection, or until `Host.drop_snapshot`; what a command writes meanwhile may be half in.
        """
        path = f"{self._path}/snapshot"
        async with self._way.asked("POST", path, "take a snapshot", FILE_SECONDS) as response:
            return (await response.json())["snapshot"]

    async def log(self) -> str:
        """What gVisor wrote about this sandbox."""
        path = f"{self._path}/log"
        async with self._way.asked("GET", path, "send a log", FILE_SECONDS) as response:
            return await response.text()

    async def close(self) -> None:
        """Destroy it; one that is gone is no error."""
        if self._way.control.lost.is_set():
            return  # it went with the connection
        what = "destroy a sandbox"
        async with self._way.asked("DELETE", self._path, what, FILE_SECONDS):
            return

    def _get(self, kind: str, path: str) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        way, asked = f"{self._path}/{kind}", {"path": path}
        return self._way.asked("GET", way, f"send {path}", FILE_SECONDS, params=asked)

    async def _put(self, kind: str, what: str, data: Any, **asked: str) -> None:
        way = f"{self._path}/{kind}"
        async with self._way.asked("PUT", way, what, FILE_SECONDS, params=asked, data=data):
            return

    async def _upload_file(self, file: BinaryIO, path: str, mode: int, num_bytes: int) -> None:
        async with self._way.file_to_write(self.name, path, mode, FILE_SECONDS) as descriptor:
            if descriptor is not None:
                await handover.copy(file.fileno(), descriptor, num_bytes)
            else:
                await self._put("file", f"take {path}", file, path=path, mode=f"{mode:o}")

    async def _save(self, path: str, staged: Path) -> None:
        async with self._way.file_to_read(self.name, path, FILE_SECONDS) as opened:
            if opened is not None:
                with _new_file(staged) as file:
                    await handover.copy(opened[0], file.fileno(), opened[1])
                return
            async with self._get("file", path) as response:
                with _new_file(staged) as file:
                    async for piece in response.content.iter_chunked(PIECE_BYTES):
                        file.write(piece)


def _new_file(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb")


def _body(header: bytes, stdin: bytes | AsyncIterator[bytes]) -> bytes | AsyncIterator[bytes]:
    """A request's body; known whole where the input is, so that it needs no chunks."""
    return header + stdin if isinstance(stdin, bytes) else _joined(header, stdin)


async def _joined(header: bytes, stdin: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield header
    async for piece in stdin:
        yield piece


async def _read_frames(
    response: aiohttp.ClientResponse,
    written: dict[str, bytearray],
    on_output: Callable[[str, bytes], None] | None,
) -> dict[str, Any]:
    """Gather what a command writes; its result. Raises InfrastructureFailure in its place."""
    frames = wire.FrameReader()
    async for piece in response.content.iter_any():
        for kind, payload in frames.feed(piece):
            if kind == wire.RESULT:
                return json.loads(payload)
            if kind == wire.FAILURE:
                parts = json.loads(payload)
                gone = parts.get("kind") == SandboxGone.__name__
                raise failure(
                    SandboxGone if gone else InfrastructureFailure, parts["problem"], parts
                )
            stream = wire.KIND_STREAMS[kind]
            written[stream] += payload
            if on_output is not None:
                on_output(stream, payload)
    raise ConnectionResetError("the answer broke off before the command's end")
