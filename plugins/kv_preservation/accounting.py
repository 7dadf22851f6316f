"""What the servers' caches saved and cost, counted from what they answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from miles_periodic.hooks.common_prefix import common_prefix
from miles_periodic.hooks.weight_versions import is_older
from miles_periodic.plugins.kv_preservation.kv_record import Chain, KVRecord


@dataclass(slots=True)
class Held:
    """What a server holds of one rollout, as far as its answers say.

    tokens: those whose KV was computed so far; the last new token has none yet.
    chain: the record's chain of these tokens.
    served: the weight version that answered last, or None before the first answer.
    asked_under: the newest version that was known when the last request left.
    """

    tokens: list[int] = field(default_factory=list)
    chain: Chain = ()
    served: str | None = None
    asked_under: str | None = None


@dataclass(slots=True)
class Counts:
    """Tokens and requests since the last step.

    reused: prompt tokens whose KV came from a cache.
    re_prefilled: prompt tokens that a running rollout had KV of and that were computed again.
    stale: tokens of new rollouts whose KV came from a cache and from other weights than theirs.
    retractions: how often a server threw a running request's KV away and computed it again.
    requests: answered requests.
    """

    reused_tokens: int = 0
    re_prefilled_tokens: int = 0
    stale_tokens: int = 0
    retractions: int = 0
    requests: int = 0

    def named(self, prefix: str) -> dict[str, float]:
        """The counts by metric name."""
        return {f"{prefix}{part.name}": getattr(self, part.name) for part in fields(self)}


class KVAccount:
    """Counts over all rollouts of a process."""

    def __init__(self, record: KVRecord | None = None) -> None:
        self.record = record or KVRecord()
        self.counts = Counts()
        self._newest: str | None = None

    def drain(self) -> Counts:
        """The counts since the last call."""
        drained, self.counts = self.counts, Counts()
        return drained

    def asks(self, held: Held, start_version: str | None) -> None:
        """Note that a rollout's next request leaves now."""
        self._saw(start_version)
        held.asked_under = self._newest

    def answered(
        self,
        held: Held,
        start_version: str | None,
        tokens: Sequence[int],
        response: Mapping[str, Any],
    ) -> None:
        """Count one answered request, and note in `held` what the server holds from now on.

        start_version: the weight version that the rollout started under, or None where unknown.
        tokens: the request's token ids.
        """
        meta = response.get("meta_info") or {}
        if _never_ran(meta):
            return
        cached = int(meta.get("cached_tokens") or 0)
        shared = common_prefix(held.tokens, tokens)
        computed = [*tokens, *_new_tokens(response)[:-1]]
        chain = self.record.chain(computed, held.chain[: shared // self.record.block_tokens])
        self._count(held, start_version, meta, cached, min(shared, len(tokens) - 1), chain)
        served = str(meta.get("weight_version") or start_version or "")
        spans = _spans(meta, len(tokens), held.asked_under or start_version or served)
        self.record.computed(chain, cached, lambda token: _version_at(token, spans))
        held.tokens, held.chain, held.served = computed, chain, served
        self._saw(served)

    def _count(
        self,
        held: Held,
        start_version: str | None,
        meta: Mapping[str, Any],
        cached: int,
        reusable: int,
        chain: Chain,
    ) -> None:
        """`reusable`: tokens of the prompt whose KV was held; its last one is always computed."""
        counts = self.counts
        counts.requests += 1
        counts.reused_tokens += cached
        counts.re_prefilled_tokens += max(0, reusable - cached)
        counts.retractions += int(meta.get("num_retractions") or meta.get("total_retractions") or 0)
        if held.served is None and start_version is not None:
            counts.stale_tokens += self.record.stale_tokens(chain, cached, start_version)

    def _saw(self, version: str | None) -> None:
        if version and not (self._newest and is_older(version, self._newest)):
            self._newest = version


def _never_ran(meta: Mapping[str, Any]) -> bool:
    """Whether a request was aborted while it waited: it computed nothing and holds nothing."""
    is_aborted = (meta.get("finish_reason") or {}).get("type") == "abort"
    return is_aborted and not meta.get("cached_tokens") and not meta.get("completion_tokens")


def _new_tokens(response: Mapping[str, Any]) -> list[int]:
    """The token ids of an answer; empty where it only has text."""
    if response.get("output_ids"):
        return list(response["output_ids"])
    scored = (response.get("meta_info") or {}).get("output_token_logprobs") or ()
    return [int(entry[1]) for entry in scored]


def _spans(meta: Mapping[str, Any], num_prompt: int, before: str) -> list[tuple[int, str]]:
    """(first token, version) of each stretch of a request, its prompt first.

    before: the newest version that was known when the request left. SGLang reports the spans of
    new tokens from 0.5.19 on; without them all tokens count as that old, never as younger.
    """
    reported = meta.get("weight_versions") or ()
    if not reported:
        return [(0, before)]
    first = str(reported[0]["version"])
    return [(0, first), *((num_prompt + span["start"], str(span["version"])) for span in reported)]


def _version_at(token: int, spans: Sequence[tuple[int, str]]) -> str:
    return next(version for start, version in reversed(spans) if start <= token)
