"""Requests that ask for routes beside requests that do not, in one output batch."""

from __future__ import annotations

import inspect


def align(wrapped, instance, args, kwargs):
    """Symptom: IndexError in the tokenizer's loop, which ends the server, or another's routes.

    Trigger: an output batch holds a request with `return_routed_experts` and one without, such as
    a health check: routes are listed for the former only and read by position. Takes down: the
    whole server. Safe because the flag is set for the time of this call only; the list then
    has one entry per request, None for those that collected nothing, which every encoder takes.
    Upstream: cured by the output streamer of 0.5.13.
    """
    requests = inspect.signature(wrapped).bind(*args, **kwargs).arguments["reqs"]
    silent = [request for request in requests if not request.return_routed_experts]
    if not silent or len(silent) == len(requests):
        return wrapped(*args, **kwargs)
    for request in silent:
        request.return_routed_experts = True
    try:
        return wrapped(*args, **kwargs)
    finally:
        for request in silent:
            request.return_routed_experts = False
