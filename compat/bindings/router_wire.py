"""What a request and its response say about routing, read from their bytes."""

from __future__ import annotations

import itertools
import json
import re
from array import array
from typing import Any

from miles_periodic.hooks.values import RoutedAnswer, RoutedRequest

_PATHS = ("generate", "v1/chat/completions", "v1/completions")
#: The fields of a request that keep its KV apart from that of other requests.
_SALTS = ("extra_key", "cache_salt", "lora_path", "lora_id")
_numbers = itertools.count()


def routed_request(method: str, path: str, body: bytes) -> RoutedRequest | None:
    """A request that generates, or None for every other one and for a body that is no JSON."""
    bare = path.strip("/")
    if method != "POST" or bare not in _PATHS:
        return None
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    salt = json.dumps([fields.get(name) for name in _SALTS], sort_keys=True)
    return RoutedRequest(next(_numbers), f"/{bare}", _tokens(fields.get("input_ids")), salt)


def _tokens(given: Any) -> array:
    """Token ids of a prompt, or of the first one of a batch; empty where there are none."""
    first = given[0] if isinstance(given, list) and given and isinstance(given[0], list) else given
    try:
        return array("q", first if isinstance(first, list) else ())
    except (TypeError, OverflowError):
        return array("q")


def answer_of(url: str, result: dict[str, Any]) -> RoutedAnswer:
    """The counts in a router's result.

    The body is searched, not parsed: it may hold megabytes of routes.
    """
    body = result["response_body"]
    counts = [_count(name, body) for name in (b"prompt", b"cached", b"completion")]
    return RoutedAnswer(url, result["status_code"], *counts)


def _count(name: bytes, body: bytes) -> int | None:
    found = re.search(rb'"%s_tokens"\s*:\s*(\d{1,12})' % name, body)
    return int(found[1]) if found else None
