"""Whether a feature reaches rollouts through Miles's session server: in the plan, and in a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from miles_periodic.compat.catalog import NOTHING, SESSION_BINDINGS, every_name, names_for_sessions
from miles_periodic.compat.catalog.features import Need
from miles_periodic.compat.drift import with_known_shapes
from miles_periodic.compat.probes.sessions import sightings
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.decisions import Decision, Inject
from miles_periodic.hooks.errors import PeriodicError


def with_sessions(decision: Decision, slug: str, tree: Tree, accept_drift: bool) -> Decision:
    """`decision` with what the session server needs, where all of it can be bound in the tree.

    Where some cannot, the feature is had without it, and the reason says so.
    """
    names = names_for_sessions(slug, tree.upstream, tree)
    if not names or not isinstance(decision, Inject):
        return decision
    found = with_known_shapes(replace(decision, bindings=names), slug, tree, accept_drift)
    if isinstance(found, Inject):
        return replace(
            found,
            evidence=(*decision.evidence, *sightings(tree)),
            bindings=tuple(dict.fromkeys((*decision.bindings, *names))),
        )
    obstacle = f"no session server, as {found.target} is not as known"
    return replace(decision, reason=f"{decision.reason}; {obstacle}")


def refuse_without_sessions(
    reaching: Collection[str], bound: Collection[str], arguments: Mapping[str, Any]
) -> None:
    """Raise PeriodicError where a run has a session server that a feature should reach and cannot.

    reaching: slugs of the features that do something to its rollouts. bound: names of the
    bindings of this run. arguments: Miles's parsed command line.
    """
    if not arguments.get("use_session_server"):
        return
    for slug in reaching:
        needs = SESSION_BINDINGS.get(slug, {}).get("miles", ())
        if not all(_is_met(need, bound) for need in needs):
            raise PeriodicError(
                "The session server of this Miles cannot be bound: its rollouts would go without.",
                feature=slug,
                expected="a session server whose shape is known, or rollouts that call /generate",
                found="--use-session-server",
                remedy=f"Run `miles plan`, which says what is unknown; take the feature out with "
                f"-{slug}, or roll out without a session server.",
            )


def _is_met(need: Need, bound: Collection[str]) -> bool:
    alternatives = (need,) if isinstance(need, str) else need
    return NOTHING in alternatives or any(name in bound for name in every_name((need,)))
