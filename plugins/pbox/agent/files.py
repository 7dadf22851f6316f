"""Files of /work over HTTP: streamed both ways, and never half a file under its name."""

from __future__ import annotations

import asyncio
import errno
import os

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from miles_periodic.plugins.pbox.agent.keys import AGENT, JOB
from miles_periodic.plugins.pbox.node import trees
from miles_periodic.plugins.pbox.node.beneath import PIECE_BYTES, WorkFiles


def _files(request: web.Request) -> WorkFiles:
    _, sandbox = request.app[AGENT].find(request[JOB], request.match_info["name"])
    return WorkFiles(sandbox.layers, sandbox.limits.disk_bytes)


async def upload(request: web.Request) -> web.Response:
    """PUT …/file?path=&mode=: replace a file by the body, when all of the body has come."""
    files, asked = _files(request), request.query
    num_bytes = 0
    with files.staged(asked["path"], int(asked.get("mode", "644"), 8)) as descriptor:
        async for piece in request.content.iter_any():
            write_all(descriptor, piece)
            num_bytes += len(piece)
        wanted = request.content_length
        if wanted is not None and wanted != num_bytes:
            raise OSError(errno.EIO, f"{num_bytes} of {wanted} bytes arrived", asked["path"])
    request.app[AGENT].counts["uploads"] += 1
    return web.json_response({"bytes": num_bytes})


def write_all(descriptor: int, piece: bytes) -> None:
    """Write a piece whole: a write to a file system that fills may be a short one."""
    view = memoryview(piece)
    while view:
        view = view[os.write(descriptor, view) :]


class _OpenedFile(web.FileResponse):
    """A file by the descriptor that was checked, sent by the kernel; closed when it was sent."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(f"/proc/self/fd/{descriptor}")
        self.content_type = "application/octet-stream"
        self._descriptor = descriptor

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        try:
            return await super().prepare(request)
        finally:
            os.close(self._descriptor)


async def download(request: web.Request) -> web.StreamResponse:
    """GET …/file?path=."""
    descriptor = _files(request).open_to_read(request.query["path"])
    request.app[AGENT].counts["downloads"] += 1
    return _OpenedFile(descriptor)


async def upload_tree(request: web.Request) -> web.Response:
    """PUT …/tree?path=: unpack a tar archive below a folder, each file whole or not at all."""
    files, path = _files(request), request.query.get("path", "")
    source, sink = os.pipe()
    unpacking = asyncio.ensure_future(asyncio.to_thread(trees.unpack, files, path, source))
    try:
        try:
            async for piece in request.content.iter_any():
                await asyncio.to_thread(write_all, sink, piece)
        except BrokenPipeError:
            pass  # it refused the archive: its own error says why
        finally:
            os.close(sink)
        num_files = await unpacking
    finally:
        await asyncio.gather(unpacking, return_exceptions=True)
    request.app[AGENT].counts["uploads"] += 1
    return web.json_response({"files": num_files})


async def download_tree(request: web.Request) -> web.StreamResponse:
    """GET …/tree?path=: a tar archive of a folder; links in it are links, not what they name."""
    files, path = _files(request), request.query.get("path", "")
    trees.check_folder(files, path)
    response = web.StreamResponse(headers={"Content-Type": "application/x-tar"})
    await response.prepare(request)
    source, sink = os.pipe()
    packing = asyncio.ensure_future(asyncio.to_thread(trees.pack, files, path, sink))
    try:
        with os.fdopen(source, "rb", buffering=0) as stream:
            while piece := await asyncio.to_thread(stream.read, PIECE_BYTES):
                await response.write(piece)
        await packing
    except BaseException:
        if request.transport is not None:
            request.transport.abort()  # an archive that broke off must not look whole
        raise
    finally:
        await asyncio.gather(packing, return_exceptions=True)
    await response.write_eof()
    request.app[AGENT].counts["downloads"] += 1
    return response
