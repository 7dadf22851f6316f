"""The requests of a rollout and what servers answer: read by the features, abortable by id."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from miles_periodic.compat.bindings import cancellation, weight_versions
from miles_periodic.compat.bindings.features import manager
from miles_periodic.compat.bindings.generate_post import Post, is_generate
from miles_periodic.compat.bindings.rollout_flight import Flight, current_flight
from miles_periodic.compat.bindings.rollout_scope import asks_frozen_model, current_rollout
from miles_periodic.hooks.values import RolloutState


def watch(wrapped, instance, args, kwargs):
    """Symptom: what a server says of its cache and its weights is read by nobody.

    Trigger: any path of Miles posts a `/generate` request of a rollout. Takes down: the rollout,
    where a feature cancels it. Safe because the request only gets an id, where it has none and
    may have to be aborted, and the answer is only read. Upstream: none.
    """
    call = inspect.signature(wrapped).bind(*args, **kwargs)
    flight, state = current_flight(), current_rollout()
    url = call.arguments["url"]
    asks = is_generate(url, call.arguments.get("payload")) and not asks_frozen_model(url)
    if flight is None or state is None or not asks:
        return wrapped(*args, **kwargs)
    return _watched(wrapped, call, flight, state)


async def _watched(post: Post, call, flight: Flight, state: RolloutState):
    flight.url, flight.state = call.arguments["url"], state
    if flight.earlier_start is not None and not state.has_started:
        state.weight_version, state.has_started = flight.earlier_start, True
    await cancellation.check(flight)
    request = cancellation.identified(flight, call.arguments["payload"])
    call.arguments["payload"] = request
    with cancellation.on_its_way(flight, request):
        response = await post(*call.args, **call.kwargs)
    weight_versions.saw(state.weight_version)
    if isinstance(response, Mapping):
        weight_versions.saw((response.get("meta_info") or {}).get("weight_version"))
        tokens = request.get("input_ids") or ()
        manager().hook.rollout_response(
            rollout=state, tokens=tokens, request=request, response=response
        )
    await cancellation.check(flight)
    return response
