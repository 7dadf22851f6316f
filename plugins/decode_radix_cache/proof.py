"""What a running decode server must show: its settings, and that it reuses what it generated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.proofs import proof_request, proof_salt
from miles_periodic.plugins.decode_radix_cache.conflicts import FLAG
from miles_periodic.plugins.decode_radix_cache.settings import SLUG

Generate = Callable[[Mapping[str, Any]], Mapping[str, Any]]

#: Prompt of the first request: whole pages, and never fewer tokens than this.
MIN_PROMPT_TOKENS = 64
#: Token ids that every vocabulary has.
_TOKENS = range(11, 43)


def check_report(report: Mapping[str, Any]) -> None:
    """Raise PeriodicError unless a server says that the flag is on and its radix cache too."""
    for name, wanted in ((FLAG, True), ("disable_radix_cache", False)):
        if report.get(name) is not wanted:
            raise _not_in_force("/server_info", f"{name}={wanted}", f"{name}={report.get(name)!r}")


def check_reuse(report: Mapping[str, Any], generate: Generate) -> None:
    """Raise PeriodicError unless a second turn finds what the first one generated in the cache.

    The prefill server never holds generated tokens when the second turn begins, so that only a hit
    beyond the first prompt is one of the decode server.
    """
    page_size = int(report.get("page_size") or 1)
    prompt = _tokens(-(-MIN_PROMPT_TOKENS // page_size) * page_size)
    salt = proof_salt()
    generated = generate(proof_request(prompt, salt, page_size + 1))["output_ids"]
    second = [*prompt, *generated, *_tokens(3)]
    cached = generate(proof_request(second, salt))["meta_info"]["cached_tokens"]
    if not len(prompt) < cached <= len(second):
        raise _not_in_force(
            "/generate, two turns of one conversation",
            f"more than {len(prompt)} and at most {len(second)} cached tokens in the second turn",
            f"{cached} cached tokens",
        )


def _tokens(count: int) -> list[int]:
    return [_TOKENS[i % len(_TOKENS)] for i in range(count)]


def _not_in_force(target: str, expected: str, found: str) -> PeriodicError:
    return PeriodicError(
        "A decode server runs without its radix cache.",
        feature=SLUG,
        target=target,
        expected=expected,
        found=found,
        remedy=f"Read that server's log for what overruled {FLAG}, or take the feature out with "
        f"-{SLUG}.",
    )
