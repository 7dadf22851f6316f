"""One sandbox from its first mount to its last: start, commands, end."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from miles_periodic.plugins.pbox.limits import Limits
from miles_periodic.plugins.pbox.node import bundle, layers, runsc
from miles_periodic.plugins.pbox.node.cgroups import Cgroup, Cgroups, Usage, end_processes
from miles_periodic.plugins.pbox.node.guest_channel import GuestChannel, Running
from miles_periodic.plugins.pbox.outcomes import (
    Exited,
    InfrastructureFailure,
    Killed,
    Outcome,
    OutOfMemory,
    OutputTruncated,
    SandboxGone,
    TimedOut,
)

#: From a kill order to the end of its command, on a busy node too; a sandbox that takes longer is
#: destroyed.
KILL_SECONDS = 10.0
#: What teardown waits for at most, step by step: runsc's own end, and everything's end.
PATIENCE_SECONDS = 0.5
TEARDOWN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Node:
    """What all sandboxes of an agent share. homes: the folder of their homes."""

    runsc: runsc.Runsc
    cgroups: Cgroups
    homes: Path


@dataclass(frozen=True, slots=True)
class Image:
    """A root file system that sandboxes share.

    python: its path in there, for process 1. environment: what its programs want to find set.
    """

    name: str
    root: Path
    python: str = "/usr/bin/python3"
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CommandOrder:
    """A command and its bounds. folder: relative to /work. user_id: 0 keeps some capabilities."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    user_id: int = bundle.USER_ID
    timeout_seconds: float = 60.0
    output_limit_bytes: int = 1 << 20


@dataclass(slots=True)
class Sandbox:
    """A started sandbox.

    _ended: its runsc has ended and was reaped. _told: the counts that the outcomes so far tell of.
    """

    name: str
    image: Image
    limits: Limits
    layers: layers.Layers
    started_at: float
    _node: Node
    _cgroup: Cgroup
    _channel: GuestChannel
    _ended: asyncio.Task[None]
    _told: Usage
    _destroyed: asyncio.Task | None = None
    _final: Usage | None = None
    num_commands: int = 0

    @property
    def lives(self) -> bool:
        """Whether it can run a command."""
        return self._destroyed is None and not self._channel.lost.is_set()

    @property
    def lost(self) -> asyncio.Event:
        """Set when its process 1 is gone."""
        return self._channel.lost

    def usage(self) -> Usage:
        """What its control group counts; after its end, what it had counted."""
        return self._final or self._cgroup.usage()

    def pids(self) -> list[int]:
        """Its processes on the host."""
        return self._cgroup.pids()

    async def execute(
        self,
        order: CommandOrder,
        write: Callable[[str, bytes], None],
        stdin: AsyncIterator[bytes] | None = None,
    ) -> tuple[Outcome, float]:
        """Run a command to its end; `write("stdout" | "stderr", piece)` gets what it writes.

        Returns how it ended and the seconds it took. Raises SandboxGone where the sandbox had
        ended before, InfrastructureFailure where it ends for no reason that is the command's.
        What an earlier command left in the background may have reached a limit since: that is the
        sandbox's own doing too, and this command's outcome.
        """
        if self._destroyed is not None:
            raise SandboxGone(f"The sandbox {self.name} has ended.", remedy="Start another one.")
        if not self.lives:
            return await self._death(), 0.0
        before, started = self.usage(), time.monotonic()
        self.num_commands += 1
        running = self._start(order, write)
        feeding = asyncio.ensure_future(self._feed(running, stdin))
        try:
            outcome = await self._end_of(running, order, before)
        except BaseException:
            if self.lives:
                self._channel.kill(running)
            raise
        finally:
            feeding.cancel()
        self._told = self.usage()
        return outcome, time.monotonic() - started

    def _start(self, order: CommandOrder, write: Callable[[str, bytes], None]) -> Running:
        return self._channel.start(
            order.words,
            {**bundle.ENVIRONMENT, **self.image.environment, **order.environment},
            os.path.join(bundle.WORK, order.folder),
            order.user_id,
            order.output_limit_bytes,
            write,
        )

    async def _feed(self, running: Running, stdin: AsyncIterator[bytes] | None) -> None:
        if stdin is not None:
            async for piece in stdin:
                if piece:
                    self._channel.feed(running, piece)
                    await self._channel.may_feed()
        self._channel.feed(running, b"")

    async def _end_of(self, running: Running, order: CommandOrder, before: Usage) -> Outcome:
        try:
            status = await asyncio.wait_for(
                asyncio.shield(running.ended), timeout=order.timeout_seconds
            )
        except ConnectionResetError:
            return await self._death()
        except asyncio.TimeoutError:
            await self._kill(running)
            return TimedOut(order.timeout_seconds)
        if running.truncated:
            return OutputTruncated(order.output_limit_bytes)
        if isinstance(status, OSError):
            running.write("stderr", f"{order.words[0]}: {status.strerror}\n".encode())
            return Exited(127 if status.errno == errno.ENOENT else 126)
        if not os.WIFSIGNALED(status):
            return Exited(os.WEXITSTATUS(status))
        if self.usage().num_oom_kills > before.num_oom_kills:
            return OutOfMemory(self.limits.memory_bytes)
        return Killed(os.WTERMSIG(status))

    async def _kill(self, running: Running) -> None:
        """Kill a command that is out of time; where that takes too long, the whole sandbox."""
        self._channel.kill(running)
        try:
            await asyncio.wait_for(asyncio.shield(running.ended), timeout=KILL_SECONDS)
        except (asyncio.TimeoutError, ConnectionResetError):
            await self.destroy()

    async def _death(self) -> Outcome:
        """Why the sandbox ended: by its own limits, or by nothing it did."""
        asked = self._destroyed is not None
        log = self.runtime_log()
        await self.destroy()
        usage = self.usage()
        if usage.num_oom_kills > self._told.num_oom_kills:
            return OutOfMemory(self.limits.memory_bytes)
        if usage.num_refused_forks > self._told.num_refused_forks:
            return Killed(9, by="num_processes")
        raise InfrastructureFailure(
            f"The sandbox {self.name} " + ("was destroyed" if asked else "ended by itself")
            + " while a command ran in it.",
            found="" if asked else log,
            remedy="" if asked else "Read the agent's log; try the command in a new sandbox.",
        )  # fmt: skip

    def runtime_log(self) -> str:
        """The end of what runsc wrote about it."""
        try:
            log = (self.layers.home / "runsc.log").read_bytes()
        except OSError:
            return ""
        return log[-2000:].decode(errors="replace").strip()

    async def write_back(self) -> None:
        """Let the guest write all that it holds in memory to its files."""
        await self._channel.write_back()

    def apply(self, limits: Limits) -> None:
        """Change what its control group bounds: memory, processes and CPU time."""
        self._cgroup.apply(limits)

    def favour(self) -> None:
        """It is used from now on: no longer let others go first."""
        self._cgroup.favour(True)

    async def answers(self, seconds: float = 5.0) -> bool:
        """Whether its process 1 answers."""
        try:
            await asyncio.wait_for(self._channel.answer(), timeout=seconds)
        except (asyncio.TimeoutError, ConnectionResetError):
            return False
        return self.lives

    async def destroy(self) -> None:
        """End it and remove every trace; a second call waits for the first one's end."""
        if self._destroyed is None:
            self._destroyed = asyncio.ensure_future(self._destroy())
        await asyncio.shield(self._destroyed)

    async def _destroy(self) -> None:
        self._channel.close()
        await asyncio.to_thread(
            end_processes,
            self._cgroup,
            patience_seconds=PATIENCE_SECONDS,
            seconds=TEARDOWN_SECONDS,
        )
        # Where even SIGKILL did not end it, what can be removed is removed all the same.
        await asyncio.wait({self._ended}, timeout=TEARDOWN_SECONDS)
        self._final = self._cgroup.usage()
        await remove_traces(self._node, self.name, self._cgroup)


async def remove_traces(node: Node, name: str, cgroup: Cgroup | None) -> None:
    """Remove what is left of a sandbox without processes: runsc's notes, group, mounts, files.

    Raises OSError where its group stays in use.
    """
    node.runsc.forget(name)
    layers.remove(node.homes / name)
    deadline = time.monotonic() + TEARDOWN_SECONDS
    while cgroup is not None:
        try:
            cgroup.remove()
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.002)
