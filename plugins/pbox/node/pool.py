"""Sandboxes that are started before anybody asks: one use each, never cleaned for a second one."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field

from miles_periodic.plugins.pbox.limits import Limits
from miles_periodic.plugins.pbox.node.sandbox import Image, Node, Sandbox
from miles_periodic.plugins.pbox.node.start import abandon, start
from miles_periodic.plugins.pbox.outcomes import InfrastructureFailure

RETRY_SECONDS = 1.0
#: A claim is followed by its first command: starting a successor waits for it, unless the pool
#: is half empty.
SETTLE_SECONDS = 0.1
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Pool:
    """Warm sandboxes of one image under one set of limits, `size` of them where all is well.

    starting: bounds how many sandboxes of the node start at once, in pools and out of them.
    """

    node: Node
    image: Image
    limits: Limits
    size: int
    starting: asyncio.Semaphore
    num_claimed: int = 0
    num_found_dead: int = 0
    _warm: deque[Sandbox] = field(default_factory=deque)
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)
    _filling: asyncio.Task | None = None

    @property
    def num_warm(self) -> int:
        """Sandboxes that wait to be claimed."""
        return len(self._warm)

    def open(self) -> None:
        """Begin to fill it."""
        self._wanted.set()
        self._filling = asyncio.ensure_future(self._fill())

    async def claim(self) -> Sandbox | None:
        """A warm sandbox that answers, for good; none where there is none right now."""
        while self._warm:
            sandbox = self._warm.popleft()
            self._wanted.set()
            sandbox.favour()
            try:
                answers = await sandbox.answers()
            except asyncio.CancelledError:
                abandon(sandbox)  # whoever asked is gone, and it is nobody's any more
                raise
            if answers:
                self.num_claimed += 1
                return sandbox
            self.num_found_dead += 1
            await sandbox.destroy()
        return None

    async def close(self) -> None:
        """Stop filling and destroy what is warm."""
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.gather(self._filling, return_exceptions=True)
        warm = [self._warm.popleft() for _ in range(len(self._warm))]
        await asyncio.gather(*(sandbox.destroy() for sandbox in warm))

    async def _fill(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            if len(self._warm) > self.size / 2:
                await asyncio.sleep(SETTLE_SECONDS)
            while len(self._warm) < self.size:
                try:
                    async with self.starting:
                        sandbox = await start(self.node, self.image, self.limits, is_used=False)
                        self._warm.append(sandbox)
                except InfrastructureFailure as failure:
                    _log.error("the pool of %s was not filled: %s", self.image.name, failure)
                    await asyncio.sleep(RETRY_SECONDS)
