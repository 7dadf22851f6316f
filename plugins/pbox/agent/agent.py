"""The agent of a node, without its wire: sandboxes, pools and leases."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.agent.leases import Lease
from miles_periodic.plugins.pbox.agent.settings import AgentSettings
from miles_periodic.plugins.pbox.agent.tokens import Tokens
from miles_periodic.plugins.pbox.images.store import ImageStore
from miles_periodic.plugins.pbox.limits import Limits
from miles_periodic.plugins.pbox.node import place, snapshots, undertaker
from miles_periodic.plugins.pbox.node.layers import Layers
from miles_periodic.plugins.pbox.node.orphans import reap_orphans
from miles_periodic.plugins.pbox.node.pool import Pool
from miles_periodic.plugins.pbox.node.proof import (
    Proof,
    prove,
    refuse_unknown_limits,
    refuse_unproved,
)
from miles_periodic.plugins.pbox.node.room import Room, room_for
from miles_periodic.plugins.pbox.node.sandbox import Image, Node, Sandbox
from miles_periodic.plugins.pbox.node.snapshots import Snapshot
from miles_periodic.plugins.pbox.node.start import start
from miles_periodic.plugins.pbox.node.sweep import sweep
from miles_periodic.plugins.pbox.node.system_calls import adopt_orphans
from miles_periodic.plugins.pbox.outcomes import InfrastructureFailure, SandboxGone

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Agent:
    """Everything that one agent holds."""

    settings: AgentSettings
    node: Node
    images: ImageStore
    tokens: Tokens
    room: Room | None = None
    proofs: list[Proof] = field(default_factory=list)
    leases: dict[str, Lease] = field(default_factory=dict)
    pools: dict[str, Pool] = field(default_factory=dict)
    counts: Counter = field(default_factory=Counter)
    unread_bytes: Counter = field(default_factory=Counter)
    started_at: float = field(default_factory=time.time)
    _starting: asyncio.Semaphore | None = None
    _num_starting: int = 0
    _held: list[int] = field(default_factory=list)
    _reaping: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Take the place, sweep what is left there, prove the limits, fill the pools.

        Raises PeriodicError where another agent is there, an image is missing, a setting asks for
        more than there is, or a limit is not enforced.
        """
        settings = self.settings
        refuse_unknown_limits(settings.allow_unenforced)
        self.room = room_for(settings.cpus, settings.memory_bytes, self.node.cgroups)
        self.room.refuse_beyond(settings.limits)
        self._held.append(await asyncio.to_thread(place.take, settings.state_dir))
        adopt_orphans()
        self._reaping = asyncio.ensure_future(reap_orphans())
        left = await asyncio.to_thread(sweep, self.node)
        _log.info("swept %d sandboxes of an agent before this one", len(left))
        self._prepare_groups()
        self._held.append(undertaker.start(settings.state_dir, self.node))
        self.tokens.ensure()
        image = self.images.get(settings.default_image).as_image(settings.default_image)
        warm = {name: self.images.get(name).as_image(name) for name in settings.warm}
        self.proofs = await prove(self.node, image, settings.cpus)
        refuse_unproved(self.proofs, settings.allow_unenforced)
        self._starting = asyncio.Semaphore(settings.max_starting)
        for name, size in settings.warm.items():
            limits, starting = settings.limits, self._starting
            pool = Pool(self.node, warm[name], limits, size, starting, self._has_seat)
            self.pools[name] = pool
            pool.open()

    def _prepare_groups(self) -> None:
        try:
            self.node.cgroups.prepare(self.settings.cpus, self.settings.memory_bytes)
        except OSError as error:
            raise PeriodicError(
                f"The control group {self.settings.cgroup!r} cannot be made, or bounded: {error}.",
                remedy="Give --cgroup a group, and above it one, without processes of their own "
                "(cgroup v2), on a file system that is mounted writable.",
            ) from error

    async def close(self) -> None:
        """Destroy everything; the undertaker does what this leaves undone."""
        ends = [pool.close() for pool in self.pools.values()]
        ends += [lease.close() for lease in self.leases.values()]
        await asyncio.gather(*ends, return_exceptions=True)
        if self._reaping is not None:
            self._reaping.cancel()
        while self._held:  # the place first: the undertaker takes it when its pipe ends
            os.close(self._held.pop(0))

    def open_lease(self, job: str) -> Lease:
        """A lease for a new control connection of a job."""
        lease = Lease(secrets.token_urlsafe(18), job)
        self.leases[lease.name] = lease
        return lease

    async def end_lease(self, lease: Lease) -> None:
        """Destroy what lives by a lease."""
        self.leases.pop(lease.name, None)
        num_sandboxes, started = len(lease.sandboxes), time.monotonic()
        await lease.close()
        seconds = time.monotonic() - started
        _log.info("a connection of %s ended: %d sandboxes destroyed in %.3f s",
                  lease.job, num_sandboxes, seconds)  # fmt: skip

    def lease_of(self, job: str, name: str) -> Lease:
        """A lease by its name. Raises InfrastructureFailure where the job has no such one."""
        lease = self.leases.get(name)
        if lease is None or lease.job != job:
            raise InfrastructureFailure(
                "The control connection that was to hold the sandbox is not there.",
                remedy="Connect again: what a connection held ended with it.",
            )
        return lease

    async def create(
        self, lease: Lease, image_name: str, limits: Limits | None, snapshot: str = ""
    ) -> Sandbox:
        """A sandbox for a lease, warm where there is one; or one that begins with a snapshot.

        Raises PeriodicError where there is no such image or a limit is beyond what the node has,
        InfrastructureFailure where the node is full, the sandbox does not start, or the lease
        ended meanwhile.
        """
        image_name = image_name or self.settings.default_image
        if limits is not None and self.room is not None:
            self.room.refuse_beyond(limits)
        sandbox = None
        if snapshot:
            kept = self.snapshot_of(lease.job, snapshot)[1]
            sandbox = await self._cold(kept.image, limits or kept.limits, kept.layers)
        else:
            limits = limits or self.settings.limits
            sandbox = await self._warm(image_name, limits)
        if sandbox is None:
            image = self.images.get(image_name).as_image(image_name)
            sandbox = await self._cold(image, limits)
        if lease.closed:
            await sandbox.destroy()
            raise InfrastructureFailure(
                "The control connection ended while a sandbox started.", remedy="Connect again."
            )
        lease.sandboxes[sandbox.name] = sandbox
        self.counts["created"] += 1
        return sandbox

    async def _cold(self, image: Image, limits: Limits, kept: Layers | None = None) -> Sandbox:
        with self._seat():
            async with self._starting:
                sandbox = await start(self.node, image, limits, kept=kept)
        self.counts["started_cold"] += 1
        return sandbox

    async def _warm(self, image_name: str, limits: Limits) -> Sandbox | None:
        pool = self.pools.get(image_name)
        if pool is None or limits != pool.limits:
            return None
        return await pool.claim()

    @contextlib.contextmanager
    def _seat(self) -> Iterator[None]:
        """A seat for what is being made: asked for together, not all may find the last one."""
        if not self._has_seat():
            self.counts["refused_full"] += 1
            raise InfrastructureFailure(
                f"The node holds {self._num_held()} sandboxes, and no more are allowed.",
                remedy="Close some, use another node, or start the agent with a higher "
                "--max-sandboxes.",
            )
        self._num_starting += 1
        try:
            yield
        finally:
            self._num_starting -= 1

    def _has_seat(self) -> bool:
        return self._num_held() < self.settings.max_sandboxes

    def _num_held(self) -> int:
        moving = sum(pool.num_moving for pool in self.pools.values())
        return self.num_sandboxes() + self._num_starting + moving

    def num_sandboxes(self) -> int:
        """Sandboxes and snapshots of all jobs, and warm sandboxes."""
        held = sum(len(e.sandboxes) + len(e.snapshots) for e in self.leases.values())
        return held + sum(pool.num_warm for pool in self.pools.values())

    def sandboxes_of(self, job: str) -> list[tuple[Lease, Sandbox]]:
        """The sandboxes of one job; of another's, nothing can be seen."""
        leases = [lease for lease in self.leases.values() if lease.job == job]
        return [(lease, sandbox) for lease in leases for sandbox in lease.sandboxes.values()]

    def find(self, job: str, name: str) -> tuple[Lease, Sandbox]:
        """A sandbox of a job. Raises SandboxGone where the job has none of that name."""
        for lease, sandbox in self.sandboxes_of(job):
            if sandbox.name == name:
                return lease, sandbox
        raise SandboxGone(f"The job {job!r} has no sandbox {name!r}.", remedy="Start another one.")

    async def take_snapshot(self, job: str, name: str) -> Snapshot:
        """Keep what a sandbox of a job wrote, as long as the sandbox's connection lasts.

        Raises SandboxGone, and InfrastructureFailure where the node is full or the copy fails.
        """
        lease, sandbox = self.find(job, name)
        with self._seat():
            snapshot = await snapshots.take(self.node, sandbox)
        if lease.closed:
            await snapshot.destroy()
            raise InfrastructureFailure(
                "The control connection ended while a snapshot was taken.", remedy="Connect again."
            )
        lease.snapshots[snapshot.name] = snapshot
        self.counts["snapshots"] += 1
        return snapshot

    def snapshot_of(self, job: str, name: str) -> tuple[Lease, Snapshot]:
        """A snapshot of a job. Raises SandboxGone where the job has none of that name."""
        for lease in self.leases.values():
            if lease.job == job and name in lease.snapshots:
                return lease, lease.snapshots[name]
        raise SandboxGone(f"The job {job!r} has no snapshot {name!r}.", remedy="Take another one.")

    async def drop_snapshot(self, job: str, name: str) -> None:
        """Remove a snapshot of a job; one that is not there is no error."""
        try:
            lease, snapshot = self.snapshot_of(job, name)
        except SandboxGone:
            return
        del lease.snapshots[name]
        await snapshot.destroy()

    async def destroy(self, job: str, name: str) -> None:
        """Destroy a sandbox of a job; one that is not there is no error."""
        try:
            lease, sandbox = self.find(job, name)
        except SandboxGone:
            return
        del lease.sandboxes[name]
        await sandbox.destroy()
        self.counts["destroyed"] += 1


def make_agent(settings: AgentSettings) -> Agent:
    """An agent that holds nothing yet. Raises PeriodicError where the machine cannot have one."""
    if os.geteuid() != 0:
        raise PeriodicError(
            "An agent mounts file systems and makes control groups, and may do neither here.",
            found=f"user {os.geteuid()}",
            remedy="Run it as root; in a job that does not, let the node run one for all jobs.",
        )
    node = place.place_of(settings.state_dir, settings.runsc, settings.platform, settings.cgroup)
    return Agent(settings, node, ImageStore(settings.image_dir), Tokens(settings.token_file))
