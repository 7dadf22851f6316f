"""Calls of Miles's HTTP client: which of them is a `/generate` request, and where its server is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

#: Miles's `post(url, payload, max_retries, action, headers)` -> the parsed answer.
Post = Callable[..., Awaitable[Any]]


def is_generate(url: str, request: Any) -> bool:
    """Whether a call posts a `/generate` request; `request` is its payload, which may be none."""
    return isinstance(request, Mapping) and urlsplit(url).path.rstrip("/").endswith("/generate")


def model_info_beside(url: str) -> str:
    """The `/model_info` page of whoever answers at a `/generate` url."""
    return url.rsplit("/", 1)[0] + "/model_info"
