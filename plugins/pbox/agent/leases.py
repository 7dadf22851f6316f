"""What lives by one control connection of a job."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from miles_periodic.plugins.pbox.node.sandbox import Sandbox


@dataclass(slots=True)
class Lease:
    """What lives as long as one control connection does. closed: nothing more may be added."""

    name: str
    job: str
    sandboxes: dict[str, Sandbox] = field(default_factory=dict)
    closed: bool = False

    async def close(self) -> None:
        """Destroy all of it at once; one that fails to go keeps none of the others."""
        self.closed = True
        sandboxes = list(self.sandboxes.values())
        self.sandboxes.clear()
        ends = await asyncio.gather(*(s.destroy() for s in sandboxes), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end
