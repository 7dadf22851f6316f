"""A delta of routes from servers that declare `routed_experts_start_len` and never read it.

SGLang 0.5.9 to 0.5.11: the field is accepted on `/generate` and dropped on the way. Three bindings
carry it past the messages that have no room for it, from the tokenizer to the collector.
"""

from __future__ import annotations

import inspect
import sys
from collections import OrderedDict
from typing import Any

FIELD = "routed_experts_start_len"

#: Most requests whose start is remembered in one scheduler; a start that fell out is answered in
#: full, which the client refuses.
MAX_REMEMBERED = 1 << 16

_starts: OrderedDict[str, int] = OrderedDict()


def carry(wrapped, instance, args, kwargs):
    """Symptom: the tokenizer copies a request field by field, and not this one.

    Trigger: every request that was tokenized. Takes down: nothing. Safe because the copy has the
    field already, at its default. Upstream: sgl-project/sglang#24851, in 0.5.12.
    """
    tokenized = wrapped(*args, **kwargs)
    request = inspect.signature(wrapped).bind(*args, **kwargs).arguments["obj"]
    if hasattr(tokenized, FIELD):
        setattr(tokenized, FIELD, getattr(request, FIELD, 0))
    return tokenized


def remember(wrapped, instance, args, kwargs):
    """Symptom: the scheduler makes its own request object, which has no such field.

    Trigger: a tokenized request arrives. Takes down: nothing; a start outside of the prompt is
    answered in full, as before. Safe because only a number is kept, by request id, until the
    request's routes are collected. Upstream: sgl-project/sglang#24851, in 0.5.12.
    """
    request = inspect.signature(wrapped).bind(*args, **kwargs).arguments["recv_req"]
    start = getattr(request, FIELD, 0) or 0
    if 0 < start <= len(request.input_ids or ()):
        _starts[request.rid] = start
        while len(_starts) > MAX_REMEMBERED:
            _starts.popitem(last=False)
    return wrapped(*args, **kwargs)


def collect(wrapped, instance, args, kwargs):
    """Symptom: a finished request's routes are gathered from its first row on, asked for or not.

    Trigger: a request finished. Takes down: nothing. Safe because without a start the native
    collector runs, and with one the same rows of the same host buffer are read, later ones only;
    rows that nobody asked for are read by nobody. Upstream: sgl-project/sglang#24851, in 0.5.12.
    """
    request = args[0] if args else kwargs["req"]
    start = _starts.pop(request.rid, 0)
    if not request.return_routed_experts:
        return None
    # Where 0.5.12 keeps it, for whoever looks at the rows after they were collected.
    setattr(request, FIELD, start)
    if not start or _host_buffer() is None:
        return wrapped(*args, **kwargs)
    request.routed_experts = _tensor(request, instance.req_to_token_pool, start, request.seqlen - 1)
    return None


def gathered(request: Any, pool: Any, first: int, end: int) -> Any:
    """Rows [first, end) of a request that holds KV, from the host buffer of captured routes.

    An int32 NumPy array (rows, num_layers, top_k) of its own.
    """
    return _tensor(request, pool, first, end).numpy()


def _tensor(request: Any, pool: Any, first: int, end: int) -> Any:
    holder = request if hasattr(request, "req_pool_idx") else request.kv
    slots = pool.req_to_token[holder.req_pool_idx]
    return _host_buffer()[slots[first:end].cpu()]


def _host_buffer() -> Any | None:
    """The host buffer (KV slots, num_layers, top_k), or None where nothing is captured."""
    capturer = _capturer()
    cache = None if capturer is None else capturer.host_cache
    return None if cache is None else cache.buffer


def _capturer() -> Any | None:
    """The process's capturer of routes; the one that captures nothing has no host buffer."""
    module = next((sys.modules[n] for n in _CAPTURER_MODULES if n in sys.modules), None)
    capturer = None if module is None else module.get_global_experts_capturer()
    return capturer if hasattr(capturer, "host_cache") else None


#: Where trees keep their capturer; the collector that we wrap has imported its own.
_CAPTURER_MODULES = (
    "sglang.srt.state_capturer.routed_experts",
    "sglang.srt.layers.moe.routed_experts_capturer",
)
