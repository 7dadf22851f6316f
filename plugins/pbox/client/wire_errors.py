"""What the agent answers where it refuses, as the exception that it raised there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.outcomes import InfrastructureFailure, SandboxGone

_KINDS = {400: PeriodicError, 410: SandboxGone}
_PARTS = ("expected", "found", "remedy")


async def raise_refusal(response: aiohttp.ClientResponse) -> None:
    """Raise what a response that is no success stands for; OSError where a file was the matter."""
    if response.status < 300:
        return
    try:
        parts = await response.json()
        problem = parts["problem"]
    except (ValueError, KeyError, TypeError, aiohttp.ContentTypeError) as error:
        raise InfrastructureFailure(
            f"The agent answered with status {response.status} and no reason.",
            found=(await response.text())[:200],
            remedy="Read the agent's log.",
        ) from error
    if response.status == 422:
        raise OSError(parts.get("errno", 0), problem)
    raise failure(_KINDS.get(response.status, InfrastructureFailure), problem, parts)


def failure(kind: type[PeriodicError], problem: str, parts: dict[str, Any]) -> PeriodicError:
    """An error with the parts that came over the wire."""
    return kind(problem, **{name: str(parts.get(name, "")) for name in _PARTS})


@contextlib.asynccontextmanager
async def failing_as_infrastructure(what: str, seconds: float) -> AsyncIterator[None]:
    """Whatever goes wrong on the way to the agent, or takes too long, is no fault of a command."""
    try:
        async with asyncio.timeout(seconds) if hasattr(asyncio, "timeout") else _timeout(seconds):
            yield
    except (aiohttp.ClientError, ConnectionError, asyncio.IncompleteReadError) as error:
        raise InfrastructureFailure(
            f"The agent did not {what}: {error or type(error).__name__}.",
            remedy="See whether the agent runs; what the connection held is gone with it.",
        ) from error
    except (TimeoutError, asyncio.TimeoutError) as error:
        raise InfrastructureFailure(
            f"The agent did not {what} within {seconds:.0f} seconds.",
            remedy="See whether the agent or its node is overloaded.",
        ) from error


@contextlib.asynccontextmanager
async def _timeout(seconds: float) -> AsyncIterator[None]:
    """`asyncio.timeout` for Python 3.10."""
    task, late = asyncio.current_task(), False

    def end() -> None:
        nonlocal late
        late = True
        task.cancel()

    timer = asyncio.get_running_loop().call_later(seconds, end)
    try:
        yield
    except asyncio.CancelledError:
        if late:
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()
