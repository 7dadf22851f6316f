"""A connection to an agent: `async with connect() as host`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.agent.tokens import read_token
from miles_periodic.plugins.pbox.client.box import Box
from miles_periodic.plugins.pbox.client.control import ControlConnection
from miles_periodic.plugins.pbox.client.way import Way
from miles_periodic.plugins.pbox.client.wire_errors import failing_as_infrastructure
from miles_periodic.plugins.pbox.limits import Limits
from miles_periodic.plugins.pbox.outcomes import InfrastructureFailure

ADDRESS_VARIABLE = "PBOX_ADDRESS"
TOKEN_FILE_VARIABLE = "PBOX_TOKEN_FILE"
#: One try to connect; the caller's deadline holds over all of them.
ATTEMPT_SECONDS = 5.0
RETRY_SECONDS = 0.2
CREATE_SECONDS = 90.0
ANSWER_SECONDS = 30.0


class Host:
    """The sandboxes of one client on one node."""

    def __init__(self, way: Way, lease: str) -> None:
        self._way = way
        self._lease = lease

    @property
    def is_lost(self) -> bool:
        """Whether the connection ended, and with it all that it held."""
        return self._way.control.lost.is_set()

    @contextlib.asynccontextmanager
    async def sandbox(
        self, image: str = "", limits: Limits | None = None, *, snapshot: str = ""
    ) -> AsyncIterator[Box]:
        """A sandbox for the block; of an image by name, the agent's default one otherwise.

        What the block came to stands, also where the agent is gone by its end: so is the sandbox.
        """
        box = await self.start(image, limits, snapshot=snapshot)
        try:
            yield box
        finally:
            with contextlib.suppress(InfrastructureFailure):
                await box.close()

    async def start(
        self, image: str = "", limits: Limits | None = None, *, snapshot: str = ""
    ) -> Box:
        """A sandbox that lives until it is closed or this connection ends.

        snapshot: a name that `Box.snapshot` gave, whose image and limits stand for those not given.
        Raises PeriodicError where there is no such image, InfrastructureFailure where none starts.
        """
        asked = {"lease": self._lease, "image": image, "snapshot": snapshot}
        asked |= {"limits": limits.model_dump()} if limits else {}
        made = await self._ask("POST", "/v1/sandboxes", CREATE_SECONDS, json=asked)
        return Box(made["name"], made["image"], self._way)

    async def drop_snapshot(self, name: str) -> None:
        """Give the memory of a snapshot back; one that is not there is no error."""
        await self._ask("DELETE", f"/v1/snapshots/{name}", ANSWER_SECONDS)

    def attach(self, name: str) -> Box:
        """A sandbox of this job that another of its processes started, by name."""
        return Box(name, "", self._way)

    async def sandboxes(self) -> list[dict[str, Any]]:
        """What the agent knows of each sandbox of this job."""
        return (await self._ask("GET", "/v1/sandboxes", ANSWER_SECONDS))["sandboxes"]

    async def node(self) -> dict[str, Any]:
        """What the agent says of itself: images, warm sandboxes, proofs of its limits."""
        return await self._ask("GET", "/v1/node", ANSWER_SECONDS)

    async def _ask(self, method: str, path: str, seconds: float, **what: Any) -> dict[str, Any]:
        words = f"answer {method} {path}"
        async with self._way.asked(method, path, words, seconds, **what) as response:
            return await response.json()


@contextlib.asynccontextmanager
async def connect(
    address: str = "",
    *,
    token: str = "",
    token_file: str | Path = "",
    job: str = "",
    timeout_seconds: float = 30.0,
) -> AsyncIterator[Host]:
    """Connect to an agent; when the block or this process ends, its sandboxes are destroyed.

    address: `unix:PATH` or `http://HOST:PORT`; the variable PBOX_ADDRESS where it is empty, and of
    several agents in it the first, which is this node's.
    token, or else token_file (PBOX_TOKEN_FILE) and a job in it where it has several.
    Raises InfrastructureFailure where no agent answers in time, PeriodicError where something is
    missing.
    """
    address = address or _from_environment(ADDRESS_VARIABLE, "an agent's address").split(",")[0]
    token = token or read_token(
        Path(token_file or _from_environment(TOKEN_FILE_VARIABLE, "a token file")), job
    )
    base, make_session = _way_to(address, token)
    control, lease = await _opened(make_session, base, timeout_seconds)
    try:
        async with make_session() as session:
            yield Host(Way(session, base, control), lease)
    finally:
        control.close()
        await control.closed()


def _from_environment(variable: str, what: str) -> str:
    value = os.environ.get(variable, "")
    if not value:
        raise PeriodicError(
            f"Nothing says {what}.",
            remedy=f"Set {variable}, as `miles pbox up` does inside a job, or give it.",
        )
    return value


def _way_to(address: str, token: str):
    """The URL that paths follow, and a maker of sessions for whichever loop asks for one."""
    headers = {"Authorization": f"Bearer {token}"}
    path = address.removeprefix("unix:") if address.startswith("unix:") else ""

    def make_session() -> aiohttp.ClientSession:
        connector = aiohttp.UnixConnector(path, limit=0) if path else aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=ATTEMPT_SECONDS)
        return aiohttp.ClientSession(
            connector=connector, headers=headers, timeout=timeout, read_bufsize=1 << 20
        )

    return ("http://pbox" if path else address.rstrip("/")), make_session


async def _opened(make_session, base: str, seconds: float) -> tuple[ControlConnection, str]:
    """Try to connect until it works or the time is up; each try has a bound of its own."""
    deadline = time.monotonic() + seconds
    while True:
        control = ControlConnection(make_session, base)
        left = deadline - time.monotonic()
        try:
            async with failing_as_infrastructure("take the connection",
                                                 max(0.1, min(left, ATTEMPT_SECONDS))):  # fmt: skip
                return control, await control.open()
        except InfrastructureFailure as error:
            control.close()
            is_refusal = error.__cause__ is None
            if is_refusal or time.monotonic() + RETRY_SECONDS > deadline:
                raise
        await asyncio.sleep(RETRY_SECONDS)
