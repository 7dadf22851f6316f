"""The way to an agent: one request with its bound, its refusal, and its failure."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp

from miles_periodic.plugins.pbox.client.control import ControlConnection
from miles_periodic.plugins.pbox.client.wire_errors import (
    failing_as_infrastructure,
    raise_refusal,
)
from miles_periodic.plugins.pbox.outcomes import InfrastructureFailure


@dataclass(frozen=True, slots=True)
class Way:
    """base: URL that paths follow. control: the connection by which everything lives."""

    session: aiohttp.ClientSession
    base: str
    control: ControlConnection

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
            self.session.request(method, self.base + path, **request) as response,
        ):
            await raise_refusal(response)
            yield response

    def refuse_when_lost(self) -> None:
        """Raise InfrastructureFailure where the control connection has ended."""
        if self.control.lost.is_set():
            raise InfrastructureFailure(
                "The connection to the agent ended, and what it held is gone.",
                remedy="Connect again.",
            )
