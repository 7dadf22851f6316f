"""Starting a sandbox: its files, its control group, its runsc, and a process 1 that answers."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from pathlib import Path

from miles_periodic.plugins.pbox.limits import Limits
from miles_periodic.plugins.pbox.node import bundle, layers, runsc
from miles_periodic.plugins.pbox.node.cgroups import Cgroup
from miles_periodic.plugins.pbox.node.guest_channel import GuestChannel, open_channel
from miles_periodic.plugins.pbox.node.sandbox import Image, Node, Sandbox, remove_traces
from miles_periodic.plugins.pbox.outcomes import InfrastructureFailure

START_SECONDS = 60.0


async def start(
    node: Node,
    image: Image,
    limits: Limits,
    *,
    is_used: bool = True,
    kept: layers.Layers | None = None,
) -> Sandbox:
    """Start a sandbox and wait until its process 1 takes commands.

    is_used: whether somebody waits for it; otherwise those that are used go first. kept: a
    snapshot to begin with.
    Raises InfrastructureFailure where that does not come to pass; nothing is left of it then, nor
    where the caller is cancelled.
    """
    starting = asyncio.ensure_future(_start(node, image, limits, is_used, kept))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        starting.add_done_callback(_abandon_started)
        raise


def _abandon_started(started: asyncio.Task[Sandbox]) -> None:
    if not started.cancelled() and started.exception() is None:
        abandon(started.result())


_abandoned: set[asyncio.Task[None]] = set()


def abandon(sandbox: Sandbox) -> None:
    """Destroy a sandbox that nobody waits for any more."""
    destroying = asyncio.ensure_future(sandbox.destroy())
    _abandoned.add(destroying)
    destroying.add_done_callback(_abandoned.discard)


async def _start(
    node: Node, image: Image, limits: Limits, is_used: bool, kept: layers.Layers | None
) -> Sandbox:
    name = secrets.token_hex(8)  # of one length: runsc takes any prefix of a name for it
    cgroup = None
    try:
        made = await _made(node.homes / name, image, limits, kept)
        bundle.write(made, image.python, limits)
        cgroup = node.cgroups.make(name, limits)
        cgroup.favour(is_used)
    except OSError as error:
        await remove_traces(node, name, cgroup)
        raise InfrastructureFailure(
            f"A sandbox's files or control group could not be made: {error}.",
            remedy="Run the agent as root on a machine where it may mount and make groups.",
        ) from error
    channel, ended = await _launch(node, name, made.home, cgroup)
    sandbox = Sandbox(
        name, image, limits, made, time.time(), node, cgroup, channel, ended, cgroup.usage()
    )
    try:
        await asyncio.wait_for(asyncio.shield(channel.ready), timeout=START_SECONDS)
    except (asyncio.TimeoutError, ConnectionResetError) as error:
        log = sandbox.runtime_log()
        await sandbox.destroy()
        raise InfrastructureFailure(
            f"A sandbox of the image {image.name!r} did not start.",
            expected=f"process 1, {image.python} of the image, within {START_SECONDS:.0f} seconds",
            found=log or "nothing in runsc's log",
            remedy="Read what runsc says; try another --platform.",
        ) from error
    except BaseException:
        await sandbox.destroy()
        raise
    return sandbox


async def _made(
    home: Path, image: Image, limits: Limits, kept: layers.Layers | None
) -> layers.Layers:
    """Its mounts; in a thread only where there is something to copy, for they take 1 ms."""
    arguments = (home, image.root, limits, bundle.USER_ID)
    if kept is None:
        return layers.make(*arguments)
    return await asyncio.to_thread(layers.make, *arguments, kept)


async def _launch(
    node: Node, name: str, home: Path, cgroup: Cgroup
) -> tuple[GuestChannel, asyncio.Task[None]]:
    (stdin, orders), (answers, stdout) = os.pipe(), os.pipe()
    try:
        running = await asyncio.to_thread(node.runsc.run, name, home, cgroup, stdin, stdout)
    finally:
        os.close(stdin)
        os.close(stdout)
    ended = asyncio.ensure_future(runsc.wait(running))
    return await open_channel(answers, orders), ended
