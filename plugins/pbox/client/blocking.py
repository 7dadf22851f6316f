"""The same client for code without an event loop: `with connect_blocking() as host`."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

from miles_periodic.plugins.pbox.client.box import Box
from miles_periodic.plugins.pbox.client.host import Host, connect
from miles_periodic.plugins.pbox.limits import Limits
from miles_periodic.plugins.pbox.outcomes import InfrastructureFailure


class _Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="pbox", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run to the end; an interrupt here cancels it there."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class BlockingBox:
    """`Box`, each method of which returns when it is done."""

    def __init__(self, box: Box, loop: _Loop) -> None:
        self._box = box
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._box, name)
        if not inspect.iscoroutinefunction(found):
            return found
        return lambda *args, **kwargs: self._loop.run(found(*args, **kwargs))


class BlockingHost:
    """`Host`, each method of which returns when it is done."""

    def __init__(self, host: Host, loop: _Loop) -> None:
        self._host = host
        self._loop = loop

    @contextlib.contextmanager
    def sandbox(
        self, image: str = "", limits: Limits | None = None, *, snapshot: str = ""
    ) -> Iterator[BlockingBox]:
        """A sandbox for the block."""
        box = self.start(image, limits, snapshot=snapshot)
        try:
            yield box
        finally:
            with contextlib.suppress(InfrastructureFailure):
                box.close()

    def start(
        self, image: str = "", limits: Limits | None = None, *, snapshot: str = ""
    ) -> BlockingBox:
        """A sandbox that lives until it is closed or this connection ends."""
        box = self._loop.run(self._host.start(image, limits, snapshot=snapshot))
        return BlockingBox(box, self._loop)

    def drop_snapshot(self, name: str) -> None:
        """Give the memory of a snapshot back."""
        self._loop.run(self._host.drop_snapshot(name))

    def attach(self, name: str) -> BlockingBox:
        """A sandbox of this job by its name."""
        return BlockingBox(self._host.attach(name), self._loop)

    def sandboxes(self) -> list[dict[str, Any]]:
        """What the agent knows of each sandbox of this job."""
        return self._loop.run(self._host.sandboxes())

    def node(self) -> dict[str, Any]:
        """What the agent says of itself."""
        return self._loop.run(self._host.node())


@contextlib.contextmanager
def connect_blocking(
    address: str = "",
    *,
    token: str = "",
    token_file: str | Path = "",
    job: str = "",
    timeout_seconds: float = 30.0,
) -> Iterator[BlockingHost]:
    """`connect` for code without an event loop; the same arguments and errors."""
    loop = _Loop()
    connecting = connect(
        address, token=token, token_file=token_file, job=job, timeout_seconds=timeout_seconds
    )
    try:
        host = loop.run(connecting.__aenter__())
        try:
            yield BlockingHost(host, loop)
        finally:
            loop.run(connecting.__aexit__(None, None, None))
    finally:
        loop.close()
