"""Sandboxes that are started before anybody asks: one use each, never cleaned for a second one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator
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
    has_seat: whether the node may hold one more. num_moving: sandboxes that start, or are asked
    whether they live: neither warm nor handed out, but there.
    """

    node: Node
    image: Image
    limits: Limits
    size: int
    starting: asyncio.Semaphore
    has_seat: Callable[[], bool]
    num_moving: int = 0
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
            with self._moving():
                if await self._answers(sandbox):
                    self.num_claimed += 1
                    return sandbox
                self.num_found_dead += 1
                await sandbox.destroy()
        return None

    async def _answers(self, sandbox: Sandbox) -> bool:
        try:
            return await sandbox.answers()
        except asyncio.CancelledError:
            abandon(sandbox)  # whoever asked is gone, and it is nobody's any more
            raise

    @contextlib.contextmanager
    def _moving(self) -> Iterator[None]:
        self.num_moving += 1
        try:
            yield
        finally:
            self.num_moving -= 1

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
                if not await self._added():
                    await asyncio.sleep(RETRY_SECONDS)

    async def _added(self) -> bool:
        """Whether one more is warm now: the node may be full, or fail to start it."""
        try:
            async with self.starting:
                if not self.has_seat():
                    return False
                with self._moving():
                    sandbox = await start(self.node, self.image, self.limits, is_used=False)
                self._warm.append(sandbox)
        except InfrastructureFailure as failure:
            _log.error("the pool of %s was not filled: %s", self.image.name, failure)
            return False
        return True
