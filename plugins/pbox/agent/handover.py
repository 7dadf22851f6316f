"""Files of /work for a client on the same machine: the agent opens them, the client moves bytes.

Over a Unix socket, `GET /v1/files` turns its connection into one that carries open files beside
lines of JSON. What may be opened is decided here as for any other request, and what is handed over
is one plain file, never a folder, so no other file can be reached from it. The client is the job
that the sandbox belongs to; the sandbox's disk bounds what it writes.

{"read": NAME, "path": …}             {"bytes": …} and the file
{"write": NAME, "path": …, "mode": …} {} and a file to write to; then one of
    {"keep": true}                    {}, and `path` is that file
    anything else, or the end         nothing has changed
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.agent.agent import Agent
from miles_periodic.plugins.pbox.agent.keys import AGENT, JOB
from miles_periodic.plugins.pbox.agent.refusals import REFUSALS, answer_to
from miles_periodic.plugins.pbox.node.beneath import WorkFiles
from miles_periodic.plugins.pbox.wire import FILES_PROTOCOL, MAX_LINE_BYTES, packed_line

#: A connection on which nothing is asked for so long is closed: each is open files of the agent's.
IDLE_SECONDS = 60.0


async def hand_over(request: web.Request) -> web.StreamResponse:
    """GET …/files: speak as above until the client ends it."""
    transport = request.transport
    if transport is None or transport.get_extra_info("socket").family != socket.AF_UNIX:
        raise PeriodicError(
            "Open files are handed over on a Unix socket only.",
            remedy="Send files over HTTP.",
        )
    response = web.StreamResponse(
        status=101, headers={"Upgrade": FILES_PROTOCOL, "Connection": "Upgrade"}
    )
    await response.prepare(request)
    with _taken_from(transport) as connection:
        handover = _Handover(request.app[AGENT], request[JOB], connection)
        with contextlib.suppress(ConnectionError):  # the client's end is the usual one
            await handover.run()
    return response


@contextlib.contextmanager
def _taken_from(transport: asyncio.Transport) -> Iterator[socket.socket]:
    """The transport's connection as a socket of our own; the transport ends with it."""
    transport.pause_reading()
    connection = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
    connection.setblocking(False)
    try:
        yield connection
    finally:
        connection.close()
        transport.abort()


@dataclass(slots=True)
class _Handover:
    """One connection: a request at a time. received: what came behind the last line."""

    agent: Agent
    job: str
    connection: socket.socket
    received: bytearray = field(default_factory=bytearray)

    async def run(self) -> None:
        """Answer until the client ends the connection, or asks for nothing for a minute."""
        loop = asyncio.get_running_loop()
        while True:
            ending = loop.call_later(IDLE_SECONDS, self.connection.shutdown, socket.SHUT_RDWR)
            try:
                asked = await self._next()
            finally:
                ending.cancel()  # of a connection that is closed by then it would be an error
            if asked is None:
                return
            try:
                _refuse_what_is_no_request(asked)
                if "read" in asked:
                    self._read(asked)
                else:
                    await self._write(asked)
            except ConnectionError:
                raise
            except REFUSALS as error:
                status, parts = answer_to(error, is_of_a_file=True)
                self._say({"status": status, **parts})

    def _read(self, asked: dict[str, Any]) -> None:
        descriptor = self._files(asked["read"]).open_to_read(asked["path"])
        try:
            self._say({"bytes": os.fstat(descriptor).st_size}, descriptor)
        finally:
            os.close(descriptor)
        self.agent.counts["downloads"] += 1

    async def _write(self, asked: dict[str, Any]) -> None:
        name, path = asked["write"], asked["path"]
        with contextlib.suppress(_NotKept):
            with self._files(name).staged(path, int(asked.get("mode", 0o644))) as descriptor:
                self._say({}, descriptor)
                if not ((await self._next()) or {}).get("keep"):
                    raise _NotKept
                self.agent.find(self.job, name)  # it may have ended meanwhile
            self.agent.counts["uploads"] += 1
        self._say({})

    def _files(self, name: str) -> WorkFiles:
        _, sandbox = self.agent.find(self.job, name)
        return WorkFiles(sandbox.layers, sandbox.limits.disk_bytes)

    async def _next(self) -> dict[str, Any] | None:
        """The next line; None at the end. Raises ConnectionError for what is no line of ours."""
        loop = asyncio.get_running_loop()
        while b"\n" not in self.received:
            piece = await loop.sock_recv(self.connection, MAX_LINE_BYTES)
            if not piece:
                return None
            self.received += piece
            if len(self.received) > MAX_LINE_BYTES:
                raise ConnectionError(f"a line of more than {MAX_LINE_BYTES} bytes")
        line, _, rest = self.received.partition(b"\n")
        self.received = rest
        try:
            return dict(json.loads(line))
        except (ValueError, TypeError, RecursionError) as error:
            raise ConnectionError("a line that is no JSON object") from error

    def _say(self, parts: dict[str, Any], *descriptors: int) -> None:
        """Send an answer; the socket holds it whole, or its client reads none of them."""
        line = packed_line(parts)
        try:
            sent = socket.send_fds(self.connection, [line], list(descriptors))
        except BlockingIOError:
            sent = 0
        if sent < len(line):
            raise ConnectionError("the client reads no answers")


def _refuse_what_is_no_request(asked: dict[str, Any]) -> None:
    """Raise ValueError: whatever else a part may be would be a fault of the agent's further on."""
    texts = [asked.get(name, "") for name in ("read", "write", "path")]
    if not all(isinstance(text, str) for text in texts) or type(asked.get("mode", 0)) is not int:
        raise ValueError("no request for a file: names and paths are text, a mode is a number")


class _NotKept(Exception):
    """What was written is not wanted."""
