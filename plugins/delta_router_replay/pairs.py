"""Runs with prefill servers whose prompts' routes could not be had."""

from __future__ import annotations

from miles_periodic.hooks import PeriodicError
from miles_periodic.hooks.values import ServerGroup
from miles_periodic.plugins.delta_router_replay.settings import SLUG


def refuse_half_routes(prefill: ServerGroup, joins: bool) -> None:
    """Raise PeriodicError where a run with prefill servers could not have a prompt's routes."""
    if not prefill.prefill_returns_routes:
        raise PeriodicError(
            "This SGLang's prefill servers do not answer with the routes of a prompt.",
            feature=SLUG,
            target="sglang.srt.disaggregation.prefill",
            expected="routed experts collected when a prompt's KV was sent",
            found="nothing that collects them",
            remedy="Use SGLang 0.5.22 or later, drop --use-rollout-routing-replay, or roll out "
            "without prefill servers.",
        )
    if not joins:
        raise PeriodicError(
            "Routers hand on the decode server's routes only, which are none of the prompt's.",
            feature=SLUG,
            expected=f"{SLUG}.join_halves=true",
            found=f"{SLUG}.join_halves=false",
            remedy=f"Set {SLUG}.join_halves=true, or drop --use-rollout-routing-replay.",
        )
