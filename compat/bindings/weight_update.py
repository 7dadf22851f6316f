"""A weight update in place: no updater flushes, and a pause is one before weights are touched.

The updaters of Miles run in the trainers and talk to the servers through handles of Ray actors;
the actors turn that into HTTP.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

IN_PLACE = "in_place"

#: Attributes under which an updater holds one handle or several.
_HELD = ("rollout_engines", "distributed_rollout_engines", "_ipc_engine")

#: Requests that load weights and, unless told otherwise, flush afterwards.
_UPDATES = "update_weights_from_"

QUIET_TIMEOUT_SECONDS = 600.0


def keep_kv(wrapped, instance, args, kwargs):
    """Symptom: colocated and FSDP updaters flush every server's KV, whatever the pause mode is.

    Trigger: a trainer updates the weights while --pause-generation-mode is in_place. Takes down:
    the KV of every running rollout, and SGLang up to 0.5.21 where requests run at the flush. Safe
    because the updater itself runs unchanged: for this one call it holds handles that leave the
    flush out, name the mode in a pause that does not, and pass everything else on; and the servers
    refuse to flush in this mode anyway. Upstream: radixark/miles#974, for one updater of four.
    """
    if instance.args.pause_generation_mode != IN_PLACE:
        return wrapped(*args, **kwargs)
    with _handles(instance), _pausing_the_rest(instance):
        return wrapped(*args, **kwargs)


@contextmanager
def _handles(updater: Any) -> Iterator[None]:
    held = {name: getattr(updater, name) for name in _HELD if getattr(updater, name, None)}
    for name, value in held.items():
        several = isinstance(value, list | tuple)
        setattr(updater, name, [*map(KeepingEngine, value)] if several else KeepingEngine(value))
    try:
        yield
    finally:
        for name, value in held.items():
            setattr(updater, name, value)


@contextmanager
def _pausing_the_rest(updater: Any) -> Iterator[None]:
    """Pause the servers that a colocated updater broadcasts to and never pauses itself.

    Unpaused, SGLang lets such an update wait until every running request is over.
    """
    rest = getattr(updater, "distributed_rollout_engines", None) or []
    if not (rest and getattr(updater, "use_distribute", False) and _is_first_rank()):
        yield
        return
    _wait([engine.pause_generation.remote(mode=IN_PLACE) for engine in rest])
    try:
        yield
    finally:
        _wait([engine.continue_generation.remote() for engine in rest])


def _is_first_rank() -> bool:
    import torch.distributed

    return torch.distributed.get_rank() == 0


def _wait(references: list[Any]) -> None:
    import ray

    ray.get(references)


class KeepingEngine:
    """A server's handle as an updater sees it during an update in place."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @property
    def flush_cache(self) -> Any:
        return _Method(_nothing)

    @property
    def pause_generation(self) -> Any:
        return _Method(lambda mode=IN_PLACE: self._engine.pause_generation.remote(mode=IN_PLACE))


class _Method:
    """A method of a handle, which is called through `remote`."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.remote = call


def _nothing() -> Any:
    import ray

    return ray.put(None)


def ask_without_flush(wrapped, instance, args, kwargs):
    """Symptom: an update from disk names no flush_cache, which the server takes as true.

    Trigger: weights are loaded by any request while --pause-generation-mode is in_place. Takes
    down: SGLang up to 0.5.21 asserts that its cache could be flushed and dies; later releases
    answer 400 with the new weights already in. Safe because only this field of these requests is
    set, and a flush in this mode can only fail. Upstream: sgl-project/sglang#33784.
    """
    call = inspect.signature(wrapped).bind(*args, **kwargs)
    endpoint, payload = call.arguments["endpoint"], call.arguments.get("payload")
    if instance.args.pause_generation_mode == IN_PLACE and endpoint.startswith(_UPDATES):
        call.arguments["payload"] = {**(payload or {}), "flush_cache": False}
    return wrapped(*call.args, **call.kwargs)


def pause_until_quiet(wrapped, instance, args, kwargs):
    """Symptom: /pause_generation answers once the order is sent, not once it is obeyed.

    Trigger: a pause that is not followed by a flush, which would have waited for the scheduler.
    Takes down: weights that another path writes (peer to peer, say) change under a forward pass.
    Safe because it only asks every scheduler for its state, which they answer from the loop that
    obeyed the pause before, and only where no flush follows. Upstream: sgl-project/sglang#23668.
    """
    answer = wrapped(*args, **kwargs)
    mode = inspect.signature(wrapped).bind(*args, **kwargs).arguments.get("mode")
    if mode == IN_PLACE and getattr(instance, "node_rank", 0) == 0:
        _hear_from_every_scheduler(f"http://{instance.server_host}:{instance.server_port}")
    return answer


def _hear_from_every_scheduler(address: str) -> None:
    """Return once each scheduler answered; requests.HTTPError where the server cannot be asked."""
    import requests

    requests.get(f"{address}/server_info", timeout=QUIET_TIMEOUT_SECONDS).raise_for_status()
