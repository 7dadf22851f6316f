"""The connection by which everything of a client lives, in a thread of its own.

The agent asks it for signs of life. A caller whose event loop is busy for a minute, or that has
none, still gives them: only the end of the process ends the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

import aiohttp

from miles_periodic.plugins.pbox.client.wire_errors import raise_refusal

#: How often the agent is asked in turn whether it lives.
HEARTBEAT_SECONDS = 10.0


class ControlConnection:
    """open() gives the lease; `lost` is set when the connection ended."""

    def __init__(self, make_session: Callable[[], aiohttp.ClientSession], base: str) -> None:
        self.lost = threading.Event()
        self._make_session = make_session
        self._url = f"{base}/v1/control"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._opened = threading.Event()
        self._closing = False
        self._lease: str | BaseException = ConnectionError("it ended before it began")
        self._thread = threading.Thread(target=self._run, name="pbox-control", daemon=True)

    async def open(self) -> str:
        """Connect; the lease's name. Raises what stopped it."""
        self._thread.start()
        await asyncio.to_thread(self._opened.wait)
        if isinstance(self._lease, BaseException):
            raise self._lease
        return self._lease

    def close(self) -> None:
        """End the connection, or the try to make one; the agent destroys what it held."""
        self._closing = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop ended by itself just now
                self._loop.call_soon_threadsafe(self._stop.set)

    async def closed(self) -> None:
        """Wait until it has ended."""
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        try:
            asyncio.run(self._until_closed())
        except Exception as error:
            self._lease = error  # for whoever opens it; later, `lost` says enough
        finally:
            self.lost.set()
            self._opened.set()

    async def _until_closed(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        if self._closing:
            return
        holding = asyncio.ensure_future(self._hold())
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({holding, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        holding.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await holding

    async def _hold(self) -> None:
        async with self._make_session() as session:
            async with session.get(self._url.replace("/control", "/node")) as response:
                await raise_refusal(response)  # a websocket's refusal has no body to read
            async with session.ws_connect(self._url, heartbeat=HEARTBEAT_SECONDS) as connection:
                self._lease = (await connection.receive_json())["lease"]
                self._opened.set()
                async for _ in connection:
                    continue
