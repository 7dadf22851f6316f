"""Commands over HTTP: one request, its standard input behind a header, and a stream of frames."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Annotated

from aiohttp import StreamReader, web
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from miles_periodic.plugins.pbox.agent.keys import AGENT, JOB
from miles_periodic.plugins.pbox.node.sandbox import CommandOrder, Sandbox
from miles_periodic.plugins.pbox.outcomes import InfrastructureFailure, outcome_to_json
from miles_periodic.plugins.pbox.wire import (
    FAILURE,
    LENGTH,
    MAX_FRAME_BYTES,
    MAX_HEADER_BYTES,
    RESULT,
    STREAM_KINDS,
    packed_frame,
)

#: What all commands of a job together may have written that their clients have not read: it is
#: memory of the agent, which other jobs share.
MAX_UNREAD_BYTES = 1 << 30

#: What Linux takes for a word, a folder or a variable.
Text = Annotated[str, StringConstraints(pattern=r"\A[^\x00]*\z")]
Name = Annotated[str, StringConstraints(pattern=r"\A[^\x00=]+\z")]


class CommandRequest(BaseModel):
    """The header of a command's request."""

    model_config = ConfigDict(extra="forbid")

    words: Annotated[list[Text], Field(min_length=1)]
    environment: dict[Name, Text] = Field(default_factory=dict)
    folder: Text = ""
    user_id: Annotated[int, Field(ge=0, lt=1 << 30)] = 1000
    timeout_seconds: Annotated[float, Field(gt=0, le=7 * 86400, allow_inf_nan=False)]
    output_limit_bytes: Annotated[int, Field(ge=0)]


class _Frames:
    """What a command wrote and its client has not read, in frames; none is the end.

    unread: bytes of it by job, of all its commands.
    """

    def __init__(self, unread: Counter, job: str) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._unread, self._job, self._num_bytes = unread, job, 0

    @property
    def is_too_much(self) -> bool:
        return self._unread[self._job] > MAX_UNREAD_BYTES

    def put(self, kind: bytes, payload: bytes) -> None:
        frame = packed_frame(kind, payload)
        self._count(len(frame))
        self._queue.put_nowait(frame)

    def end(self) -> None:
        self._queue.put_nowait(None)

    async def write_to(self, response: web.StreamResponse) -> None:
        """Until the end."""
        try:
            while (frame := await self._queue.get()) is not None:
                await response.write(frame)
                self._count(-len(frame))
        finally:
            self._count(-self._num_bytes)

    def _count(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        self._unread[self._job] += num_bytes


async def execute(request: web.Request) -> web.StreamResponse:
    """POST …/exec."""
    agent = request.app[AGENT]
    _, sandbox = agent.find(request[JOB], request.match_info["name"])
    order = _order(await _header(request.content), agent.settings.max_output_bytes)
    frames = _Frames(agent.unread_bytes, request[JOB])
    running = asyncio.ensure_future(_run(sandbox, order, request.content, frames))
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    try:
        await response.prepare(request)
        await frames.write_to(response)
        await response.write_eof()
    finally:
        running.cancel()
        agent.counts["commands"] += 1
    return response


async def _run(
    sandbox: Sandbox, order: CommandOrder, content: StreamReader, frames: _Frames
) -> None:
    """Run a command; what it writes, then its result, then the end go to the frames."""
    task, is_cut_off = asyncio.current_task(), False

    def write(stream: str, piece: bytes) -> None:
        nonlocal is_cut_off
        if is_cut_off or frames.is_too_much:
            is_cut_off = True
            task.cancel()
            return
        for start in range(0, len(piece), MAX_FRAME_BYTES):
            frames.put(STREAM_KINDS[stream], piece[start : start + MAX_FRAME_BYTES])

    try:
        outcome, seconds = await sandbox.execute(order, write, _pieces(content))
        result = outcome_to_json(outcome) | {"seconds": seconds, "lives": sandbox.lives}
        frames.put(RESULT, json.dumps(result).encode())
    except InfrastructureFailure as error:
        _fail(frames, error)
    except asyncio.CancelledError:
        if not is_cut_off:
            raise
        _fail(frames, InfrastructureFailure(
            f"What the job's commands wrote and nobody read is over {MAX_UNREAD_BYTES >> 20} MiB.",
            remedy="Read faster, run fewer commands at once, or give them lower output limits.",
        ))  # fmt: skip
    finally:
        frames.end()


def _fail(frames: _Frames, error: InfrastructureFailure) -> None:
    parts = {"problem": error.problem, "kind": type(error).__name__, **error.parts}
    frames.put(FAILURE, json.dumps(parts).encode())


async def _header(content: StreamReader) -> CommandRequest:
    (length,) = LENGTH.unpack(await content.readexactly(LENGTH.size))
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"a header of {length} bytes, and {MAX_HEADER_BYTES} are allowed")
    return CommandRequest.model_validate_json(await content.readexactly(length))


def _order(asked: CommandRequest, max_output_bytes: int) -> CommandOrder:
    return CommandOrder(
        tuple(asked.words),
        asked.environment,
        asked.folder,
        asked.user_id,
        asked.timeout_seconds,
        min(asked.output_limit_bytes, max_output_bytes),
    )


async def _pieces(content: StreamReader) -> AsyncIterator[bytes]:
    async for piece in content.iter_any():
        yield piece


async def log(request: web.Request) -> web.Response:
    """GET …/log: what runsc wrote about a sandbox."""
    _, sandbox = request.app[AGENT].find(request[JOB], request.match_info["name"])
    return web.Response(text=sandbox.runtime_log())
