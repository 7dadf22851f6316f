"""A rollout from the first request until it is trained on, and what is on record of its start.

What must outlive the task that generates a rollout (a partial rollout is taken up again in a later
step, a finished one waits in a buffer) is written into its sample's metadata.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from miles_periodic.hooks.values import RolloutState

#: Key in a sample's metadata; the value is a plain dict, since Miles saves and logs metadata.
RECORD = "miles_periodic"
START, CANCELLED = "start_weight_version", "cancelled"


@dataclass(eq=False, slots=True)
class Flight:
    """One rollout while it is generated.

    sample: what Miles asked to generate: a Sample, or a list of them.
    earlier_start: the weight version it started under in an earlier step, or None.
    state: what the features see of it; None before its first request.
    url: of its `/generate` requests, once one has left.
    request_ids: ids of the requests that a server works on right now.
    task: what generates it, where it can be cancelled.
    arguments: Miles's, where it can be cancelled.
    reason: why it was cancelled, or empty.
    """

    sample: Any
    earlier_start: str | None = None
    state: RolloutState | None = None
    url: str = ""
    request_ids: set[str] = field(default_factory=set)
    task: asyncio.Task | None = None
    arguments: Any = None
    reason: str = ""


_flight: ContextVar[Flight | None] = ContextVar("miles_periodic_flight", default=None)


def current_flight() -> Flight | None:
    """The flight that this task belongs to, or None outside one and in evaluations."""
    return _flight.get()


@contextmanager
def flying(sample: Any) -> Iterator[Flight]:
    """The flight of a sample: the one that is open for it, or a new one."""
    flight = _flight.get()
    if flight is not None and flight.sample is sample:
        yield flight
        return
    flight = Flight(sample, _earlier_start(sample))
    token = _flight.set(flight)
    try:
        yield flight
    finally:
        _flight.reset(token)


def keep_start(wrapped, instance, args, kwargs):
    """Symptom: a sample tells which weights answered it, not under which its rollout started.

    Trigger: `generate_and_rm` runs one sample. Takes down: nothing. Safe because it only sets a
    context variable and one entry in the metadata of what Miles returns. Upstream: none.
    """
    call = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    if call.get("evaluation"):
        return wrapped(*args, **kwargs)
    return _keep_start(wrapped, args, kwargs, call["sample"])


async def _keep_start(wrapped, args, kwargs, sample):
    with flying(sample) as flight:
        result = await wrapped(*args, **kwargs)
    if flight.state is not None:
        put_on_record(result, flight)
    return result


def put_on_record(samples: Any, flight: Flight) -> None:
    """Write what is known of a flight into the metadata of each sample that it left."""
    started = flight.state.weight_version if flight.state is not None else flight.earlier_start
    record = {START: started, **({CANCELLED: flight.reason} if flight.reason else {})}
    for sample in each_sample(samples):
        sample.metadata = {**(sample.metadata or {}), RECORD: record}


def each_sample(samples: Any) -> Iterator[Any]:
    """The samples in what Miles hands around: one, a list, or lists of lists."""
    if isinstance(samples, list | tuple):
        for part in samples:
            yield from each_sample(part)
    else:
        yield samples


def start_of(sample: Any) -> str | None:
    """The weight version under which a sample's rollout started, or None where unknown."""
    return _record(sample).get(START)


def was_cancelled(sample: Any) -> bool:
    """Whether a sample is what is left of a rollout that was cancelled."""
    return CANCELLED in _record(sample)


def _record(sample: Any) -> dict[str, Any]:
    return (sample.metadata or {}).get(RECORD) or {}


def _earlier_start(samples: Any) -> str | None:
    """The start of a partial rollout that is taken up again; a retried prompt starts afresh."""
    first = next(each_sample(samples))
    return start_of(first) if first.response_length > 0 else None
