"""Snapshots: what a sandbox wrote, kept on the node to start others with."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass

from miles_periodic.plugins.pbox.limits import Limits
from miles_periodic.plugins.pbox.node import layers
from miles_periodic.plugins.pbox.node.sandbox import Image, Node, Sandbox, remove_traces
from miles_periodic.plugins.pbox.outcomes import InfrastructureFailure, SandboxGone


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A writable layer, and what it was a layer of. It uses memory of the node until it ends."""

    name: str
    image: Image
    limits: Limits
    layers: layers.Layers
    _node: Node

    async def destroy(self) -> None:
        """Remove it; sandboxes that began with it have copies of their own."""
        await remove_traces(self._node, self.name, None)


async def take(node: Node, sandbox: Sandbox) -> Snapshot:
    """Copy what a sandbox has written, apart from what it holds in /tmp and /dev/shm.

    What a command writes meanwhile may be half in it. Raises SandboxGone where the sandbox has
    ended, InfrastructureFailure where the copy fails.
    """
    try:
        await sandbox.write_back()
    except ConnectionResetError as error:
        raise SandboxGone(
            f"The sandbox {sandbox.name} has ended.", remedy="Take a snapshot while it lives."
        ) from error
    name = f"kept-{secrets.token_hex(8)}"
    try:
        kept = await asyncio.to_thread(
            layers.keep, node.homes / name, sandbox.layers, sandbox.limits
        )
    except OSError as error:
        raise InfrastructureFailure(
            f"The snapshot of {sandbox.name} could not be written: {error}.",
            remedy="Remove files that need not be kept, or give the node more memory.",
        ) from error
    return Snapshot(name, sandbox.image, sandbox.limits, kept, node)
