"""A delta of routes from servers that declare `routed_experts_start_len` and never read it.

SGLang 0.5.9 to 0.5.11: the field is accepted on `/generate` and dropped on the way. Three bindings
carry it past the messages that have no room for it, from the tokenizer to the collector.
"""

from __future__ import annotations

import inspect
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
    """Symptom: a finished request's routes are gathered from its first row on.

    Trigger: a request finished. Takes down: nothing. Safe because without a start the native
    collector runs, and with one the same rows of the same host buffer are read, later ones only.
    Upstream: sgl-project/sglang#24851, in 0.5.12.
    """
    request = inspect.signature(wrapped).bind(*args, **kwargs).arguments["req"]
    start = _starts.pop(request.rid, 0)
    rows = _rows_from(instance, request, start) if start else None
    if rows is None:
        return wrapped(*args, **kwargs)
    request.routed_experts = rows
    return None


def _rows_from(scheduler: Any, request: Any, start: int) -> Any | None:
    """Rows [start, tokens - 1) of the host buffer, or None where nothing is captured."""
    from sglang.srt.layers.moe.routed_experts_capturer import get_global_experts_capturer

    cache = get_global_experts_capturer().get_host_cache()
    if cache is None:
        return None
    slots = scheduler.req_to_token_pool.req_to_token[request.req_pool_idx]
    return cache.buffer[slots[start : request.seqlen - 1].cpu()]
