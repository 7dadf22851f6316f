"""Rollouts that a feature cancels: aborted on the servers, kept out of training, and counted."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from miles_periodic.compat.bindings import weight_versions
from miles_periodic.compat.bindings.features import manager
from miles_periodic.compat.bindings.generate_post import model_info_beside
from miles_periodic.compat.bindings.rollout_flight import (
    Flight,
    each_sample,
    flying,
    put_on_record,
    start_of,
    was_cancelled,
)
from miles_periodic.compat.boot import member
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.values import Cancel, RolloutState

WATCH_INTERVAL_SECONDS = 1.0
#: Miles tries a request 60 times by default; an abort that fails is told, and the rollout ends.
ABORT_TRIES = 3
DROP_REASON = "miles_periodic_cancelled"


@dataclass(slots=True)
class _Tally:
    """What was done since the last step was logged."""

    num_cancelled: int = 0
    num_dropped: int = 0


@dataclass(slots=True)
class _Watch:
    """The rollouts that one event loop has in flight, and the task that looks after them."""

    task: asyncio.Task
    flights: set[Flight] = field(default_factory=set)


_tally = _Tally()
#: By event loop, for as long as it has rollouts in flight.
_watches: dict[asyncio.AbstractEventLoop, _Watch] = {}


def drain_tally() -> tuple[int, int]:
    """(rollouts cancelled in flight, samples of finished ones dropped) since the last call."""
    global _tally
    drained, _tally = _tally, _Tally()
    return drained.num_cancelled, drained.num_dropped


def make_cancellable(wrapped, instance, args, kwargs):
    """Symptom: a rollout that is too old to be trained on is generated to its end.

    Trigger: `generate_and_rm` runs one sample. Takes down: the one rollout that a feature cancels,
    which Miles gets back as aborted. Safe because the rollout only runs in a task of its own, as
    each does already, and Miles gives its semaphore back when a task is cancelled. Upstream:
    `--max-weight-staleness` of Miles, which sees finished groups only.
    """
    call = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    if call.get("evaluation"):
        return wrapped(*args, **kwargs)
    return _cancellable(wrapped, args, kwargs, call)


async def _cancellable(wrapped, args, kwargs, call):
    sample = call["sample"]
    with flying(sample) as flight:
        flight.arguments = call["args"] if "args" in call else call["state"].args
        flight.task = asyncio.ensure_future(wrapped(*args, **kwargs))
        try:
            with _looked_after(flight):
                result = await flight.task
        except asyncio.CancelledError:
            if not flight.reason:
                raise
    return _aborted(flight) if flight.reason else result


def _aborted(flight: Flight) -> Any:
    for sample in each_sample(flight.sample):
        sample.status = type(sample).Status.ABORTED
    put_on_record(flight.sample, flight)
    return flight.sample


def identified(flight: Flight, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """The request with an id under which the servers can abort it, where that may be needed."""
    if flight.task is None or request.get("rid"):
        return request
    return {**request, "rid": f"miles-periodic-{uuid.uuid4().hex}"}


@contextmanager
def on_its_way(flight: Flight, request: Mapping[str, Any]) -> Iterator[None]:
    """While a server works on a request."""
    rid = request.get("rid")
    ids = {rid} if isinstance(rid, str) else set(rid or ())
    flight.request_ids |= ids
    try:
        yield
    finally:
        flight.request_ids -= ids


async def check(flight: Flight) -> None:
    """Ask the features, from within a rollout; raises CancelledError where it ends here."""
    if flight.task is not None and await _cancel_if_told(flight):
        raise asyncio.CancelledError(flight.reason)


async def _cancel_if_told(flight: Flight) -> bool:
    if not flight.reason and flight.state is not None:
        answer = _verdict(flight.state, finished=False)
        if answer is not None:
            await _cancel(flight, answer)
    return bool(flight.reason)


async def _cancel(flight: Flight, answer: Cancel) -> None:
    flight.reason = answer.reason
    _tally.num_cancelled += 1
    try:
        await _abort_requests(flight)
    finally:
        if flight.task is not asyncio.current_task():
            flight.task.cancel()


async def _abort_requests(flight: Flight) -> None:
    """Tell every server to abort what it works on for this rollout; which one does is not known."""
    ids = tuple(flight.request_ids)
    if not ids:
        return
    from miles.rollout.inference_rollout.inference_rollout_train import get_worker_urls
    from miles.utils.http_utils import post

    try:
        urls = await get_worker_urls(flight.arguments)
        orders = [(f"{url}/abort_request", {"rid": rid}) for url in urls for rid in ids]
        await asyncio.gather(*(post(url, body, ABORT_TRIES) for url, body in orders))
    except Exception as error:  # whatever Miles's client raises; closing the connection remains
        member().notice(f"a cancelled request could not be aborted: {error!r}")


def _verdict(state: RolloutState, finished: bool) -> Cancel | None:
    """The features' answer; their PeriodicError ends the run, which Miles might only log."""
    try:
        return manager().hook.rollout_verdict(
            rollout=state, weight_version=weight_versions.newest(), finished=finished
        )
    except PeriodicError as error:
        member().report_failure("rollout_verdict", str(error))
        raise


@contextmanager
def _looked_after(flight: Flight) -> Iterator[None]:
    """Among the flights that are judged anew whenever a server reports another version."""
    loop = asyncio.get_running_loop()
    watch = _watches.get(loop)
    if watch is None or watch.task.done():
        watch = _watches[loop] = _Watch(asyncio.ensure_future(_look_after(loop)))
    watch.flights.add(flight)
    try:
        yield
    finally:
        watch.flights.discard(flight)


async def _look_after(loop: asyncio.AbstractEventLoop) -> None:
    told, watch = False, _watches[loop]
    while watch.flights:
        await asyncio.sleep(WATCH_INTERVAL_SECONDS)
        url = next((flight.url for flight in watch.flights if flight.url), "")
        try:
            await _ask_weight_version(url)
        except Exception as error:  # whatever Miles's client raises; its own requests will tell
            if not told:
                member().notice(f"the servers' weight version is not known: {error!r}")
            told = True
        for flight in tuple(watch.flights):
            await _cancel_if_told(flight)
    del _watches[loop]


async def _ask_weight_version(url: str) -> None:
    if not url:
        return
    from miles.utils.http_utils import post

    answer = await post(model_info_beside(url), None, 1, action="get")
    weight_versions.saw(answer.get("weight_version"))


def drop_group(wrapped, instance, args, kwargs):
    """Symptom: Miles 0.0.2 trains on groups with aborted samples, which have no reward.

    Trigger: a group is complete. Takes down: the groups of which a feature cancelled a rollout.
    Safe because it gives the answer that a filter of the user gives, and Miles asks for another
    group. Upstream: the data buffer of Miles's fully asynchronous rollouts, which drops them.
    """
    group = inspect.signature(wrapped).bind(*args, **kwargs).arguments["args"][-1]
    samples = list(each_sample(group))
    gone = [sample for sample in samples if was_cancelled(sample)]
    if not gone and not any(_is_refused(sample) for sample in samples):
        return wrapped(*args, **kwargs)
    _tally.num_dropped += len(samples) - len(gone)
    from miles.rollout.filter_hub.base_types import DynamicFilterOutput

    return DynamicFilterOutput(keep=False, reason=DROP_REASON)


def drop_finished(samples: Any) -> None:
    """Take what may no longer be trained on out of a step, as Miles does it: by its loss mask.

    The rest of its group goes with it: what a sample is worth was measured against the others.
    """
    kept = [sample for sample in each_sample(samples) if not sample.remove_sample]
    refused = {_group_of(sample) for sample in kept if _is_refused(sample)}
    for sample in kept:
        if _group_of(sample) in refused:
            sample.remove_sample = True
            _tally.num_dropped += 1


def _group_of(sample: Any) -> tuple[str, int]:
    """What names a sample's group; a sample without one is a group of its own."""
    index = getattr(sample, "group_index", None)
    return ("sample", id(sample)) if index is None else ("group", index)


def _is_refused(sample: Any) -> bool:
    start = start_of(sample)
    state = RolloutState(weight_version=start, has_started=True)
    return start is not None and _verdict(state, finished=True) is not None
