"""Which runs can keep KV over a weight update, and what stands against the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from miles_periodic.hooks import PeriodicError
from miles_periodic.hooks.values import ServerGroup
from miles_periodic.plugins.kv_preservation.settings import SLUG

#: Miles's argument, what it does to KV, and what to give instead.
_LOSES_KV = (
    (
        "offload_rollout",
        "gives the servers' KV memory away after every rollout",
        "--no-offload-rollout",
    ),
    (
        "recompute_logprobs_via_prefill",
        "flushes every server's KV before it scores a step",
        "no --recompute-logprobs-via-prefill",
    ),
)


def check_updates_in_place(arguments: Mapping[str, Any]) -> None:
    """PeriodicError, before anything starts, where some argument throws KV away in every mode.

    A colocated run is refused only because of the offloading that --colocate switches on.
    """
    for name, what, instead in _LOSES_KV:
        if arguments.get(name):
            flag = f"--{name.replace('_', '-')}"
            by_colocate = " (--colocate sets it)" if arguments.get("colocate") else ""
            raise PeriodicError(
                f"Miles {what}, so that no weight update can keep it.",
                feature=SLUG,
                target=flag,
                expected=instead,
                found=flag + (by_colocate if name == "offload_rollout" else ""),
                remedy=f"Give {instead}, or set {SLUG}.pause_in_place=false.",
            )


def check_stands_still(servers: ServerGroup) -> None:
    """PeriodicError where servers of a pair would go on computing while their weights change."""
    if not servers.stands_still:
        raise PeriodicError(
            f"This SGLang's {servers.role} servers acknowledge a pause and go on.",
            feature=SLUG,
            target=f"sglang.srt.disaggregation.{servers.role}",
            expected="an event loop that waits while the engine is paused",
            found="an event loop that does not look",
            remedy=f"Use SGLang 0.5.11 or later, set {SLUG}.pause_in_place=false, or roll out "
            "without prefill servers.",
        )


def check_weight_versions(arguments: Mapping[str, Any]) -> None:
    """PeriodicError where a server would report several weight versions at once.

    An update reaches one tokenizer worker, and only that one reports the new version from then on:
    a new rollout could take an old salt, and no age would be right.
    """
    workers = arguments.get("sglang_tokenizer_worker_num") or 1
    if workers > 1:
        flag = "--sglang-tokenizer-worker-num"
        raise PeriodicError(
            "Each tokenizer worker of a server keeps a weight version of its own.",
            feature=SLUG,
            target=flag,
            expected=f"{flag} 1",
            found=f"{flag} {workers}",
            remedy=f"Give {flag} 1, or set {SLUG}.salt=false and leave "
            f"{SLUG}.max_off_policy_steps unset.",
        )


def staleness_arguments(arguments: Mapping[str, Any], max_steps: int) -> dict[str, Any]:
    """What bounds finished groups in the data buffer of a Miles that has one.

    PeriodicError where rollouts go through session servers, whose requests are not seen here, and
    where the command line bounds them otherwise.
    """
    if arguments.get("use_session_server"):
        raise PeriodicError(
            "Rollouts of a session server cannot be cancelled by their age.",
            feature=SLUG,
            target=f"{SLUG}.max_off_policy_steps",
            expected="rollouts that call /generate",
            found="--use-session-server",
            remedy=f"Leave {SLUG}.max_off_policy_steps unset, or roll out without session servers.",
        )
    if "max_weight_staleness" not in arguments:
        return {}
    own = arguments["max_weight_staleness"]
    if own not in (None, max_steps):
        raise PeriodicError(
            "The age of rollouts is bounded twice, and differently.",
            feature=SLUG,
            target="--max-weight-staleness",
            expected=f"{max_steps}, as {SLUG}.max_off_policy_steps says",
            found=str(own),
            remedy=f"Drop --max-weight-staleness, or set {SLUG}.max_off_policy_steps={own}.",
        )
    return {"max_weight_staleness": max_steps}
