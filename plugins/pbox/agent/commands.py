"""Commands over HTTP: one request, its standard input behind a header, and a stream of frames."""

from __future__ import annotations

import asyncio
import json
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


async def execute(request: web.Request) -> web.StreamResponse:
    """POST …/exec."""
    agent = request.app[AGENT]
    _, sandbox = agent.find(request[JOB], request.match_info["name"])
    order = _order(await _header(request.content), agent.settings.max_output_bytes)
    frames: asyncio.Queue[bytes | None] = asyncio.Queue()
    running = asyncio.ensure_future(_run(sandbox, order, request.content, frames))
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    try:
        await response.prepare(request)
        while (frame := await frames.get()) is not None:
            await response.write(frame)
        await response.write_eof()
    finally:
        running.cancel()
        agent.counts["commands"] += 1
    return response


async def _run(
    sandbox: Sandbox, order: CommandOrder, content: StreamReader, frames: asyncio.Queue
) -> None:
    """Run a command; what it writes, then its result, then none go into the queue."""

    def write(stream: str, piece: bytes) -> None:
        for start in range(0, len(piece), MAX_FRAME_BYTES):
            part = piece[start : start + MAX_FRAME_BYTES]
            frames.put_nowait(packed_frame(STREAM_KINDS[stream], part))

    try:
        outcome, seconds = await sandbox.execute(order, write, _pieces(content))
        result = outcome_to_json(outcome) | {"seconds": seconds, "lives": sandbox.lives}
        frames.put_nowait(packed_frame(RESULT, json.dumps(result).encode()))
    except InfrastructureFailure as error:
        parts = {"problem": error.problem, "kind": type(error).__name__, **error.parts}
        frames.put_nowait(packed_frame(FAILURE, json.dumps(parts).encode()))
    finally:
        frames.put_nowait(None)


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
