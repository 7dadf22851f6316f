"""The sandbox of the rollout that is being played: started when first used, gone at its end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.rollout_ground import RolloutGround, current_ground
from miles_periodic.plugins.pbox.client.box import Box
from miles_periodic.plugins.pbox.limits import Limits
from miles_periodic.plugins.pbox.outcomes import InfrastructureFailure, Result
from miles_periodic.plugins.pbox.rollout.hosts import next_host

_LENT = "sandbox"


class RolloutBox:
    """`Box`, whose failures are noted on the ground of its rollout before they are raised.

    A command that ends its sandbox (out of memory, out of processes) ends no rollout: that is the
    model's doing, and the next command gets a new, empty sandbox. num_lost: how many went so.
    """

    def __init__(self, ground: RolloutGround, image: str, limits: Limits | None) -> None:
        self.num_lost = 0
        self._ground = ground
        self._image = image
        self._limits = limits
        self._started: Box | None = None
        ground.at_end(self.close)

    async def exec(self, words: Sequence[str], **options: Any) -> Result:
        """`Box.exec`."""
        with self._noting():
            result = await (await self._box()).exec(words, **options)
        if not result.sandbox_lives:
            self.num_lost += 1
            await self.close()
        return result

    async def write_text(self, path: str, text: str) -> None:
        """`Box.write_text`."""
        with self._noting():
            await (await self._box()).write_text(path, text)

    async def read_text(self, path: str) -> str:
        """`Box.read_text`."""
        with self._noting():
            return await (await self._box()).read_text(path)

    async def upload(self, local: str, path: str) -> None:
        """`Box.upload`."""
        with self._noting():
            await (await self._box()).upload(local, path)

    async def download(self, path: str, local: str) -> None:
        """`Box.download`."""
        with self._noting():
            await (await self._box()).download(path, local)

    async def close(self) -> None:
        """Destroy it. Where that cannot be asked for, it goes with its connection."""
        started, self._started = self._started, None
        if started is not None:
            with contextlib.suppress(InfrastructureFailure):
                await started.close()

    async def _box(self) -> Box:
        if self._started is None:
            host = await next_host()
            self._started = await host.start(self._image, self._limits)
        return self._started

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        """A failure of the ground is noted; one of a file (OSError) is the caller's own matter."""
        try:
            yield
        except PeriodicError as error:
            self._ground.fail(error, may_pass=isinstance(error, InfrastructureFailure))
            raise


def rollout_box(image: str = "", limits: Limits | None = None) -> RolloutBox:
    """The sandbox of the rollout that is being played; image and limits are those of the first
    call. Raises PeriodicError outside of a rollout.
    """
    ground = current_ground()
    if _LENT not in ground.lent:
        ground.lent[_LENT] = RolloutBox(ground, image, limits)
    return ground.lent[_LENT]
