"""What lives by one control connection of a job."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from miles_periodic.plugins.pbox.node.sandbox import Sandbox
from miles_periodic.plugins.pbox.node.snapshots import Snapshot


@dataclass(slots=True)
class Lease:
    """What lives as long as one control connection does. closed: nothing more may be added."""

    name: str
    job: str
    sandboxes: dict[str, Sandbox] = field(default_factory=dict)
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    closed: bool = False

    async def close(self) -> None:
        """Destroy all of it at once; one that fails to go keeps none of the others."""
        self.closed = True
        all_of_it = [*self.sandboxes.values(), *self.snapshots.values()]
        self.sandboxes.clear()
        self.snapshots.clear()
        ends = await asyncio.gather(*(one.destroy() for one in all_of_it), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end
