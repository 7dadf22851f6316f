"""The hooks of kv-preservation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from miles_periodic.hooks import Feature, PeriodicError, RolloutState, hookimpl
from miles_periodic.hooks.proofs import ServerProof, proof_request, proof_salt
from miles_periodic.hooks.values import (
    Cancel,
    RolloutStep,
    RouteShape,
    ServerGroup,
    SessionPrefix,
)
from miles_periodic.hooks.weight_versions import newer
from miles_periodic.plugins.kv_preservation import sessions
from miles_periodic.plugins.kv_preservation.accounting import Held, KVAccount
from miles_periodic.plugins.kv_preservation.runs import (
    check_stands_still,
    check_updates_in_place,
    check_weight_versions,
    staleness_arguments,
)
from miles_periodic.plugins.kv_preservation.settings import SLUG, KVPreservationSettings
from miles_periodic.plugins.kv_preservation.staleness import ages_of, verdict

#: Every salt starts with this, so that no client's own `extra_key` can be one of ours.
NAMESPACE = "miles-periodic:weight-version"

#: In a session's memory: the newest weight version that was known at its first request.
_EXPECTED = f"{SLUG}: expected version"
#: Where the feature's numbers stand in Miles's own log of a rollout step.
METRICS = "miles_periodic/kv/"


def salt_of(weight_version: str, client_key: str | None = None) -> str:
    """The KV salt of a rollout that started under `weight_version`.

    client_key: an `extra_key` that the request has already (an adapter, say); it stays a part of
    the salt, behind a length, so that no two pairs give one text.
    """
    salt = f"{NAMESPACE}={len(weight_version)}:{weight_version}"
    return salt if client_key is None else f"{salt};client={client_key}"


class KVPreservation(Feature):
    """Weights are updated in place; new rollouts start on KV of their own weight version."""

    slug = SLUG
    why = (
        "Running rollouts keep their KV through a weight update, and new ones never reuse stale KV."
    )
    settings_model = KVPreservationSettings
    pull_requests = (
        *("miles#924", "miles#974", "miles#1750", "miles#1497", "miles#2782", "miles#2783"),
        *("sglang#23300", "sglang#26755", "sglang#7419", "sglang#10071", "sglang#20272"),
        *("sglang#20908", "sglang#23668", "sglang#23672", "sglang#22304", "sglang#24462"),
        *("sglang#25319", "sglang#30675", "sglang#32153", "sglang#33784"),
    )
    exit = "Miles salts the radix cache by weight version and updates in place everywhere."

    def __init__(self, settings: KVPreservationSettings | None = None) -> None:
        super().__init__(settings)
        self._seen = sessions.VersionsSeen()
        self._account = KVAccount()
        self._needs_versions = self.settings.salt or self.settings.max_off_policy_steps is not None

    @hookimpl
    def complete_arguments(self, arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if self._needs_versions:
            check_weight_versions(arguments)
        changes: dict[str, Any] = {}
        if self.settings.pause_in_place:
            check_updates_in_place(arguments)
            changes["pause_generation_mode"] = "in_place"
        if self.settings.max_off_policy_steps is not None:
            changes |= staleness_arguments(arguments, self.settings.max_off_policy_steps)
        return changes or None

    @hookimpl
    def reaches_into_sessions(self, arguments: Mapping[str, Any]) -> bool | None:
        return self.settings.salt

    @hookimpl
    def server_arguments(self, servers: ServerGroup) -> Mapping[str, Any] | None:
        if self.settings.pause_in_place:
            check_stands_still(servers)
        return None

    @hookimpl
    def wants_weight_version(self, rollout: RolloutState) -> bool | None:
        return True if self._needs_versions else None

    @hookimpl
    def server_proofs(self, request: Mapping[str, Any]) -> Sequence[ServerProof] | None:
        return (_salts_separate(),) if self.settings.salt and self.settings.prove_salt else None

    @hookimpl
    def generate_request_fields(
        self, rollout: RolloutState, tokens: Sequence[int], request: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        self._account.asks(_held(rollout), rollout.weight_version)
        if not self.settings.salt:
            return None
        if rollout.weight_version is None:
            raise PeriodicError(
                "The server does not report its weight version, so that no salt can be made.",
                feature=SLUG,
                target="/model_info",
                expected="weight_version",
                found="nothing",
                remedy=f"Set {SLUG}.salt=false, or serve with a tree whose /model_info has it.",
            )
        key = request.get("extra_key")
        if isinstance(key, list | tuple):
            return {"extra_key": [salt_of(rollout.weight_version, k) for k in key]}
        return {"extra_key": salt_of(rollout.weight_version, key)}

    @hookimpl
    def session_request_fields(
        self,
        rollout: RolloutState,
        prefix: SessionPrefix,
        tokens: Sequence[int],
        request: Mapping[str, Any],
    ) -> Mapping[str, Any] | None:
        expected = newer(self._seen.newest, rollout.weight_version)
        rollout.memory.setdefault(_EXPECTED, expected)
        fields = self.generate_request_fields(rollout, tokens, sessions.with_one_key(request))
        if fields is None or request.get("cache_salt") is None:
            return fields
        return {**fields, "cache_salt": None}

    @hookimpl
    def session_response_refusal(
        self,
        rollout: RolloutState,
        request: Mapping[str, Any],
        meta_info: Mapping[str, Any],
        num_tokens: int,
        shape: RouteShape | None,
    ) -> str | None:
        answered = meta_info.get("weight_version")
        if answered is None:
            return None
        self._seen.note(str(answered))
        return sessions.outdated(str(answered), rollout.memory.get(_EXPECTED))

    @hookimpl
    def rollout_response(
        self,
        rollout: RolloutState,
        tokens: Sequence[int],
        request: Mapping[str, Any],
        response: Mapping[str, Any],
    ) -> None:
        self._account.answered(_held(rollout), rollout.weight_version, tokens, response)

    @hookimpl
    def rollout_verdict(
        self, rollout: RolloutState, weight_version: str | None, finished: bool
    ) -> Cancel | None:
        served = _held(rollout).served
        limit = self.settings.max_off_policy_steps
        return verdict(rollout.weight_version, served, weight_version, limit)

    @hookimpl
    def rollout_step_metrics(self, step: RolloutStep) -> Mapping[str, float] | None:
        return {
            **self._account.drain().named(METRICS),
            **ages_of(step).named(METRICS),
            f"{METRICS}cancelled_rollouts": step.num_cancelled,
            f"{METRICS}dropped_samples": step.num_dropped,
        }


def _held(rollout: RolloutState) -> Held:
    return rollout.memory.setdefault(SLUG, Held())


_PROOF_TOKENS = tuple(range(11, 43))


def _salts_separate() -> ServerProof:
    requests = tuple(proof_request(_PROOF_TOKENS, proof_salt()) for _ in range(2))
    return ServerProof("salts separate the KV of equal prompts", requests, _check_salts)


def _check_salts(responses: Sequence[Mapping[str, Any]]) -> None:
    cached = responses[1].get("meta_info", {}).get("cached_tokens", 0)
    if cached:
        raise PeriodicError(
            "The server ignores KV salts: a prompt under one salt reused KV of another.",
            feature=SLUG,
            target="/generate, extra_key",
            expected="0 cached tokens under a new salt",
            found=f"{cached} cached tokens",
            remedy=f"Use an SGLang that hands extra_key to its cache, or set {SLUG}.salt=false.",
        )
