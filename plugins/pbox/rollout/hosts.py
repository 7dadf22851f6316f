"""The agents of a job as one process of it sees them: a connection each, shared by all rollouts."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from dataclasses import dataclass, field

from miles_periodic.plugins.pbox.client.host import ADDRESS_VARIABLE, Host, connect

CONNECT_SECONDS = 30.0


@dataclass(slots=True)
class _Connection:
    """One agent. opening: its host, as it comes; tried anew when it failed or was lost."""

    address: str
    opening: asyncio.Task[Host] | None = None
    held: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    async def host(self) -> Host:
        if self.opening is None or self._is_over(self.opening):
            self.opening = asyncio.ensure_future(self._open())
        return await asyncio.shield(self.opening)

    def _is_over(self, opening: asyncio.Task[Host]) -> bool:
        if not opening.done():
            return False
        return opening.cancelled() or opening.exception() is not None or opening.result().is_lost

    async def _open(self) -> Host:
        await self.held.aclose()
        connecting = connect(self.address, timeout_seconds=CONNECT_SECONDS)
        return await self.held.enter_async_context(connecting)


#: By event loop: its connections in the order of their turns.
_by_loop: dict[asyncio.AbstractEventLoop, itertools.cycle[_Connection]] = {}


async def next_host() -> Host:
    """A host of the next of the agents in PBOX_ADDRESS, which are asked in turn.

    Connections last as long as the process: at its end, their sandboxes are destroyed.
    Raises what `connect` raises.
    """
    loop = asyncio.get_running_loop()
    if loop not in _by_loop:
        addresses = os.environ.get(ADDRESS_VARIABLE, "").split(",")
        _by_loop[loop] = itertools.cycle([_Connection(each) for each in addresses])
    return await next(_by_loop[loop]).host()


async def close_hosts() -> None:
    """End the connections of this event loop, where a process outlives its rollouts."""
    connections = _by_loop.pop(asyncio.get_running_loop(), ())
    first = None
    for connection in connections:  # a cycle: once around
        if connection is first:
            return
        first = first or connection
        await connection.held.aclose()
