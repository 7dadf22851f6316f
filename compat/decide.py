"""One feature on one upstream to a decision: its probe, its settings, the known shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from miles_periodic.compat.catalog import (
    HOOK_BINDINGS,
    names_for_hooks,
    names_for_settings,
    upstream_bindings,
)
from miles_periodic.compat.drift import with_known_shapes, without_known_shape
from miles_periodic.compat.expiry import remaining, without_replaced
from miles_periodic.compat.patched import carried
from miles_periodic.compat.probes import PROBES, Probe
from miles_periodic.compat.session_support import with_sessions
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.conditions import Replacement
from miles_periodic.hooks.decisions import UPSTREAMS, Decision, Inject, Native, Unsupported
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.feature import Feature, FeatureSettings

_BROUGHT_BY = {
    "sglang": "miles-rl 0.0.2 or sglang",
    "megatron": "miles-rl 0.0.2 or megatron-core",
    "miles": "miles-rl 0.0.2",
}


@dataclass(frozen=True, slots=True)
class Question:
    """One feature on one upstream, as it was asked for."""

    slug: str
    upstream: str
    probe: Probe
    settings: FeatureSettings
    accept_drift: bool
    replacements: tuple[Replacement, ...]


def probes_of(feature: type[Feature]) -> list[tuple[str, Probe]]:
    """Upstream and probe, in the order of UPSTREAMS; of somebody else's plugin, by its hooks."""
    probes = PROBES.get(feature.slug) or _probes_by_hooks(feature)
    return [(upstream, probes[upstream]) for upstream in UPSTREAMS if upstream in probes]


def _probes_by_hooks(feature: type[Feature]) -> Mapping[str, Probe]:
    called_by: dict[str, list[str]] = {}
    for hook in HOOK_BINDINGS:
        if hasattr(feature, hook):
            for upstream in upstream_bindings(hook):
                called_by.setdefault(upstream, []).append(hook)
    return {u: partial(_by_hooks, hooks) for u, hooks in (called_by or {"miles": []}).items()}


def _by_hooks(hooks: Sequence[str], tree: Tree) -> Decision:
    if not hooks:
        return Unsupported(
            "it implements no hook, so that it would do nothing",
            "Implement one of the hooks in docs/hooks.md.",
            expected=f"one of {', '.join(HOOK_BINDINGS)}",
            found="none of them",
        )
    return Inject(f"implements {', '.join(hooks)}", (), names_for_hooks(hooks, tree))


def decide(question: Question, tree: Tree | None) -> Decision:
    """What the tree says to the question; None: the upstream is not installed."""
    if tree is None:
        return _not_installed(question.upstream)
    try:
        decision = _with_settings(question.probe(tree), question, tree)
        if isinstance(decision, Inject):
            decision = without_replaced(decision, question.replacements, tree)
        if isinstance(decision, Inject):
            known = with_known_shapes(decision, question.slug, tree, question.accept_drift)
            decision = with_sessions(known, question.slug, tree, question.accept_drift)
        if isinstance(decision, Inject):
            decision = replace(decision, in_sources=carried(decision.bindings, tree))
    except (PeriodicError, OSError) as error:
        return _unreadable(tree, error)
    return decision


def _not_installed(upstream: str) -> Unsupported:
    return Unsupported(
        f"{upstream} is not installed",
        f"Install {_BROUGHT_BY[upstream]}, or look at a tree with: "
        f"miles plan --tree {upstream}=DIR.",
        target=upstream,
        expected=f"an installed package {upstream!r} or a tree",
        found="neither",
    )


def _with_settings(decision: Decision, question: Question, tree: Tree) -> Decision:
    """`decision` with the bindings of the settings that are on, native or injected as it was."""
    if not isinstance(decision, Native | Inject):
        return decision
    offered, without = _offered(question, tree)
    names = names_for_settings(
        question.slug, question.upstream, (*question.settings.names_on(), *offered), tree
    )
    put_in = (f"settings put in {', '.join(names)}",) if names else ()
    reason = "; ".join((decision.reason, *put_in, *without))
    if not names:
        return replace(decision, reason=reason)
    before = decision.bindings if isinstance(decision, Inject) else ()
    return Inject(reason, decision.evidence, tuple(dict.fromkeys((*before, *names))))


def _offered(question: Question, tree: Tree) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The settings that are left open and can be had, and a clause for each that cannot."""
    offered, without = [], []
    for setting in question.settings.names_left_open():
        names = names_for_settings(question.slug, question.upstream, (setting,), tree)
        unknown = without_known_shape(remaining(names, question.replacements, tree), tree)
        if unknown:
            without.append(f"without {setting}: no known shape of {', '.join(unknown)}")
        elif names:
            offered.append(setting)
    return tuple(offered), tuple(without)


def _unreadable(tree: Tree, error: PeriodicError | OSError) -> Unsupported:
    """A source that decides and cannot be read takes down this row, not the whole plan."""
    parts = error.parts if isinstance(error, PeriodicError) else {}
    problem = error.problem if isinstance(error, PeriodicError) else f"{error}."
    return Unsupported(
        f"its sources cannot be read: {problem.removesuffix('.')}",
        parts.get("remedy") or "Repair the tree.",
        target=parts.get("target") or tree.name,
        expected="sources that can be read",
        found=problem.removesuffix("."),
    )
