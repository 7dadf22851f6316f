"""The way to an agent: one request with its bound, its refusal, and its failure."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp

from miles_periodic.plugins.pbox.client.control import ControlConnection
from miles_periodic.plugins.pbox.client.handover import Handover
from miles_periodic.plugins.pbox.client.wire_errors import (
    failing_as_infrastructure,
    raise_refusal,
)
from miles_periodic.plugins.pbox.outcomes import InfrastructureFailure


@dataclass(frozen=True, slots=True)
class Way:
    """base: URL that paths follow. control: the connection by which everything lives.

    handover: where the agent is on this machine.
    """

    session: aiohttp.ClientSession
    base: str
    control: ControlConnection
    handover: Handover | None = None

    @classmethod
    @contextlib.contextmanager
    def to(
        cls,
        address: str,
        token: str,
        session: aiohttp.ClientSession,
        base: str,
        control: ControlConnection,
    ) -> Iterator[Way]:
        """The way to the agent at `address`, for the block."""
        path = address.removeprefix("unix:")
        handover = Handover(path, token) if path != address else None
        try:
            yield cls(session, base, control, handover)
        finally:
            if handover is not None:
                handover.close()

    @contextlib.asynccontextmanager
    async def asked(
        self, method: str, path: str, what: str, seconds: float, **request: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The response to a request; it must be read within `seconds` too.

        what: words after "the agent did not". Raises what the agent raised, OSError where a file
        was the matter, InfrastructureFailure where the way failed or took too long.
        """
        self.refuse_when_lost()
        async with (
            failing_as_infrastructure(what, seconds),
            self.session.request(
                method, self.base + path, allow_redirects=False, **request
            ) as response,
        ):
            await raise_refusal(response)
            yield response

    @contextlib.asynccontextmanager
    async def file_to_write(
        self, sandbox: str, path: str, mode: int, seconds: float
    ) -> AsyncIterator[int | None]:
        """A descriptor of what is to replace a file below /work; None where that goes over HTTP.

        Raises as `asked` does.
        """
        self.refuse_when_lost()
        async with failing_as_infrastructure(f"take {path}", seconds):
            if self.handover is None or not await self.handover.works():
                yield None
                return
            async with self.handover.to_write(sandbox, path, mode) as descriptor:
                yield descriptor

    @contextlib.asynccontextmanager
    async def file_to_read(
        self, sandbox: str, path: str, seconds: float
    ) -> AsyncIterator[tuple[int, int] | None]:
        """A descriptor of a file below /work and its length; None where it comes over HTTP.

        Raises as `asked` does.
        """
        self.refuse_when_lost()
        async with failing_as_infrastructure(f"send {path}", seconds):
            if self.handover is None or not await self.handover.works():
                yield None
                return
            async with self.handover.to_read(sandbox, path) as opened:
                yield opened

    def refuse_when_lost(self) -> None:
        """Raise InfrastructureFailure where the control connection has ended."""
        if self.control.lost.is_set():
            raise InfrastructureFailure(
                "The connection to the agent ended, and what it held is gone.",
                remedy="Connect again.",
            )
