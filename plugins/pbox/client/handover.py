"""Files of /work on this machine: the agent opens them, and their bytes move here.

What agent/handover.py answers, from the client's side. An agent that is not on this machine, or
does not know how, is asked over HTTP instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from typing import Any

from miles_periodic.plugins.pbox.client.wire_errors import raise_what_was_refused
from miles_periodic.plugins.pbox.wire import FILES_PROTOCOL, MAX_LINE_BYTES, packed_line

#: Before the agent ends a connection on which nothing was asked.
MOST_IDLE_SECONDS = 30.0
#: Moving so many takes about a millisecond, which an event loop can spare.
PIECE_BYTES = 4 << 20
_HEAD_END = b"\r\n\r\n"


@dataclass(slots=True)
class Handover:
    """The connections for files of one client. path: of the agent's socket.

    is_known: whether the agent hands them over; None before it was asked.
    """

    path: str
    token: str
    is_known: bool | None = None
    _idle: list[tuple[float, socket.socket]] = field(default_factory=list)

    async def works(self) -> bool:
        """Whether the agent hands files over. Raises ConnectionError where it does not answer."""
        if self.is_known is None:
            opened = await self._opened()
            self.is_known = opened is not None
            self._idle += [(time.monotonic(), opened)] if opened else []
        return self.is_known

    @contextlib.asynccontextmanager
    async def to_read(self, sandbox: str, path: str) -> AsyncIterator[tuple[int, int]]:
        """A descriptor of a file below /work, and its length in bytes."""
        async with self._connection() as connection:
            said, descriptor = await _asked(connection, {"read": sandbox, "path": path})
        try:
            yield descriptor, said["bytes"]
        finally:
            os.close(descriptor)

    @contextlib.asynccontextmanager
    async def to_write(self, sandbox: str, path: str, mode: int) -> AsyncIterator[int]:
        """A descriptor to write to; `path` is replaced by it when the block ends well."""
        asked = {"write": sandbox, "path": path, "mode": mode}
        async with self._connection() as connection:
            _, descriptor = await _asked(connection, asked)
            try:
                yield descriptor
            finally:
                os.close(descriptor)
            await _asked(connection, {"keep": True})

    def close(self) -> None:
        """End the connections that nothing uses."""
        while self._idle:
            self._idle.pop()[1].close()

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[socket.socket]:
        """A connection for one file; it is kept for the next where all went well."""
        connection = self._waiting() or await self._opened()
        if connection is None:
            raise ConnectionError("it no longer hands files over")
        try:
            yield connection
        except BaseException:
            connection.close()  # whatever was begun on it is dropped there
            raise
        self._idle.append((time.monotonic(), connection))

    def _waiting(self) -> socket.socket | None:
        """The connection that was used last, where that is not too long ago."""
        if not self._idle:
            return None
        since, connection = self._idle.pop()
        if time.monotonic() - since < MOST_IDLE_SECONDS:
            return connection
        connection.close()
        self.close()  # the others are older still
        return None

    async def _opened(self) -> socket.socket | None:
        """A connection that carries files; None where the agent does not take it for that."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(connection, self.path)
            await loop.sock_sendall(connection, self._request())
            head = b""
            while _HEAD_END not in head:
                piece = await loop.sock_recv(connection, MAX_LINE_BYTES)
                head += piece
                if not piece or len(head) > MAX_LINE_BYTES:
                    raise ConnectionError("it ended the connection")
            if head.split(maxsplit=2)[1:2] == [b"101"]:
                return connection
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError) and not isinstance(error, ConnectionError):
                raise ConnectionError(str(error)) from error
            raise
        connection.close()
        return None

    def _request(self) -> bytes:
        lines = [
            "GET /v1/files HTTP/1.1",
            "Host: pbox",
            f"Authorization: Bearer {self.token}",
            f"Upgrade: {FILES_PROTOCOL}",
            "Connection: Upgrade",
        ]
        return "\r\n".join(lines).encode() + _HEAD_END


async def _asked(connection: socket.socket, asked: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """What the agent answers, and the file with it, or -1. Raises what the agent raised there."""
    await asyncio.get_running_loop().sock_sendall(connection, packed_line(asked))
    received, descriptors = b"", []
    try:
        while not received.endswith(b"\n"):
            piece, more = await _received(connection)
            received, descriptors = received + piece, descriptors + more
        said = json.loads(received)
        raise_what_was_refused(said.get("status", 200), said)
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return said, descriptors[0] if descriptors else -1


async def _received(connection: socket.socket) -> tuple[bytes, list[int]]:
    while True:
        try:
            piece, descriptors, _, _ = socket.recv_fds(
                connection, MAX_LINE_BYTES, 1, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            await _readable(connection)
            continue
        if not piece:
            raise ConnectionError("it ended the connection")
        return piece, descriptors


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    arrived = loop.create_future()
    loop.add_reader(connection, lambda: arrived.done() or arrived.set_result(None))
    try:
        await arrived
    finally:
        loop.remove_reader(connection)


async def fill(descriptor: int, data: bytes) -> None:
    """Write all of `data`."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view[:PIECE_BYTES]) :]
        if view:
            await asyncio.sleep(0)  # others have their turn


async def content(descriptor: int, num_bytes: int) -> bytes:
    """The first `num_bytes` of a file. Raises OSError where it no longer has them."""
    pieces, left = [], num_bytes
    while left:
        pieces.append(os.read(descriptor, min(left, PIECE_BYTES)) or _shrank())
        left -= len(pieces[-1])
        if left:
            await asyncio.sleep(0)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def copy(source: int, target: int, num_bytes: int) -> None:
    """The first `num_bytes` of one file into another. Raises OSError where it has fewer."""
    position = 0
    while position < num_bytes:
        count = min(num_bytes - position, PIECE_BYTES)
        sending = asyncio.to_thread(os.sendfile, target, source, position, count)
        position += await _ended(sending) or _shrank()


async def _ended(work: Awaitable[int]) -> int:
    """What a thread comes to. Whoever gives up still waits for its end: until then it uses
    descriptors of theirs, which after a close may be another file's.
    """
    task, given_up = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            given_up = error
    if given_up is not None:
        raise given_up
    return task.result()


def _shrank() -> Any:
    raise OSError(errno.EIO, "it became shorter while it was read")
