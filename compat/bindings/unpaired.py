"""Requests to a decode server that name no prefill server."""

from __future__ import annotations

import inspect


def refuse(wrapped, instance, args, kwargs):
    """Symptom: one request without `bootstrap_host` ends the decode scheduler, and so the server.

    Trigger: a client, a health check or a router that knows nothing of pairs posts to a decode
    server (sglang/srt/disaggregation/decode.py, `_bootstrap_addr`). Takes down: that request, with
    status 400. Safe because servers of other roles, and requests that name a prefill server, go
    on untouched. Upstream: none.
    """
    request = inspect.signature(wrapped).bind(*args, **kwargs).arguments["obj"]
    if instance.server_args.disaggregation_mode == "decode" and not request.bootstrap_host:
        # SGLang answers 400 to a ValueError of its tokenizer, with this text.
        raise ValueError(
            "This is a decode server, and the request names no prefill server: send it through "
            "the router, or set bootstrap_host, bootstrap_port and bootstrap_room."
        )
    return wrapped(*args, **kwargs)
