"""The node's end of the pipes to a sandbox's process 1: commands as streams of events.

What comes from inside is hostile: a frame that breaks the form ends the sandbox, a number that is
not known is passed over, and no more is kept of a command than its output limit.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

HEAD = struct.Struct("<cII")
MAX_FRAME_BYTES = 1 << 20
#: Marks are group ids that no image uses.
FIRST_MARK = 1 << 30


@dataclass(slots=True)
class Running:
    """One command: what it wrote arrives at `write`, its end in `ended`.

    ended: wait status, or an OSError where it was not started.
    """

    number: int
    write: Callable[[str, bytes], None]
    allowed_bytes: int
    ended: asyncio.Future[int | OSError]
    truncated: bool = False


@dataclass(slots=True)
class GuestChannel:
    """Commands of one sandbox. `lost` is set when process 1 is gone."""

    ready: asyncio.Future[None]
    lost: asyncio.Event
    _writer: asyncio.WriteTransport
    _running: dict[int, Running] = field(default_factory=dict)
    _asked: dict[int, asyncio.Future[None]] = field(default_factory=dict)
    _next: int = 1

    def start(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        folder: str,
        user_id: int,
        output_limit_bytes: int,
        write: Callable[[str, bytes], None],
    ) -> Running:
        """Start a command; it is killed when it writes more than `output_limit_bytes`."""
        number, self._next = self._next, self._next + 1
        entries = [f"{name}={value}" for name, value in environment.items()]
        fields = [output_limit_bytes, user_id, user_id, FIRST_MARK + number, folder, len(words)]
        text = "\0".join([*map(str, fields), *words, *entries])
        ended = asyncio.get_running_loop().create_future()
        running = self._running[number] = Running(number, write, output_limit_bytes, ended)
        self._send(b"x", number, os.fsencode(text))
        return running

    def feed(self, running: Running, data: bytes) -> None:
        """Give a command input; an empty piece ends it."""
        self._send(b"i" if data else b"c", running.number, data)

    async def may_feed(self) -> None:
        """Wait until what was fed before has mostly gone."""
        while self._writer.get_write_buffer_size() > MAX_FRAME_BYTES and not self.lost.is_set():
            await asyncio.sleep(0.002)

    def kill(self, running: Running) -> None:
        """Kill a command and all that it started."""
        self._send(b"k", running.number)

    async def write_back(self) -> None:
        """Let the guest write all that it holds in memory to its files."""
        await self._ask(b"s")

    async def answer(self) -> None:
        """Wait for any sign of life. Raises ConnectionResetError where there is none any more."""
        await self._ask(b"p")

    async def _ask(self, kind: bytes) -> None:
        if self.lost.is_set():
            raise ConnectionResetError("process 1 of the sandbox ended")
        number, self._next = self._next, self._next + 1
        done = self._asked[number] = asyncio.get_running_loop().create_future()
        self._send(kind, number)
        await done

    def close(self) -> None:
        """Close our end: process 1 ends when it reads that."""
        self._writer.close()

    def _send(self, kind: bytes, number: int, payload: bytes = b"") -> None:
        self._writer.write(HEAD.pack(kind, number, len(payload)) + payload)

    def receive(self, kind: bytes, number: int, payload: bytes) -> None:
        """Take one frame from inside."""
        if kind == b"r":
            _resolve(self.ready, None)
        elif kind == b"d":
            _resolve(self._asked.pop(number, None), None)
        elif number in self._running:
            self._receive_of(self._running[number], kind, payload)

    def _receive_of(self, running: Running, kind: bytes, payload: bytes) -> None:
        if kind in (b"o", b"e"):
            allowed = payload[: running.allowed_bytes]
            running.allowed_bytes -= len(allowed)
            running.truncated |= len(allowed) < len(payload)
            if allowed:
                running.write("stdout" if kind == b"o" else "stderr", allowed)
        elif kind == b"t":
            running.truncated = True
        elif kind in (b"q", b"f"):
            end = _end(kind, payload)  # raises before anything is forgotten
            del self._running[running.number]
            _resolve(running.ended, end)

    def lose(self) -> None:
        """Process 1 is gone: wake everybody who waits for it."""
        self.lost.set()
        for waiting in (self.ready, *self._asked.values()):
            _resolve(waiting, ConnectionResetError("process 1 of the sandbox ended"))
        for running in self._running.values():
            _resolve(running.ended, ConnectionResetError("process 1 of the sandbox ended"))
        self._running.clear()


def _end(kind: bytes, payload: bytes) -> int | OSError:
    if kind == b"f":
        number = int(payload) if payload.isdigit() and len(payload) < 5 else 0
        return OSError(number, os.strerror(number))
    return struct.unpack("<i", payload)[0]


def _resolve(future: asyncio.Future | None, value: object) -> None:
    if future is None or future.done():
        return
    if isinstance(value, ConnectionResetError):
        future.set_exception(value)
        future.exception()  # nobody may be waiting: it is not a mistake
    else:
        future.set_result(value)


class _Frames(asyncio.Protocol):
    """Bytes to frames."""

    def __init__(self) -> None:
        self.channel: GuestChannel | None = None
        self._received = bytearray()
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        try:
            self._take_frames()
        except (ValueError, struct.error):
            self._received.clear()
            self._transport.close()

    def _take_frames(self) -> None:
        position = 0
        while len(self._received) - position >= HEAD.size:
            kind, number, length = HEAD.unpack_from(self._received, position)
            if length > MAX_FRAME_BYTES:
                raise ValueError("a frame is longer than any that process 1 sends")
            end = position + HEAD.size + length
            if len(self._received) < end:
                break
            payload = bytes(memoryview(self._received)[position + HEAD.size : end])
            position = end
            self.channel.receive(kind, number, payload)
        del self._received[:position]

    def connection_lost(self, error: Exception | None) -> None:
        self.channel.lose()


async def open_channel(answers: int, orders: int) -> GuestChannel:
    """A channel over the read end `answers` and the write end `orders`, which it now owns."""
    loop = asyncio.get_running_loop()
    protocol = _Frames()
    writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(orders, "wb"))
    protocol.channel = GuestChannel(loop.create_future(), asyncio.Event(), writer)
    await loop.connect_read_pipe(lambda: protocol, os.fdopen(answers, "rb"))
    return protocol.channel
