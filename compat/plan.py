"""Feature x upstream to a decision, made before anything starts and the same in every process."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from miles_periodic.compat import environment as surroundings
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
from miles_periodic.hooks.decisions import (
    UPSTREAMS,
    Decision,
    Inject,
    Native,
    Off,
    Unsupported,
    word,
)
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.feature import Feature, FeatureSettings
from miles_periodic.hooks.nearest_name import did_you_mean
from miles_periodic.hooks.selection import check_slugs

SCHEMA = 1

_BROUGHT_BY = {
    "sglang": "miles-rl 0.0.2 or sglang",
    "megatron": "miles-rl 0.0.2 or megatron-core",
    "miles": "miles-rl 0.0.2",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One feature on one upstream that it touches."""

    feature: str
    upstream: str
    decision: Decision


@dataclass(frozen=True, slots=True)
class Plan:
    """What each feature gets on each upstream that it touches.

    features: every slug that was planned, also one that touches no upstream.
    rows: in the order of `features` and of UPSTREAMS.
    trees: upstream to the tree that was read, for messages.
    environment: what `compat.environment.describe` said.
    allow_missing: features that may be unsupported without stopping the launch.
    """

    features: tuple[str, ...]
    rows: tuple[Row, ...]
    trees: Mapping[str, str]
    environment: Mapping[str, Any] = field(default_factory=dict)
    allow_missing: tuple[str, ...] = ()

    def rows_of(self, feature: str) -> tuple[Row, ...]:
        """The rows of one feature."""
        return tuple(row for row in self.rows if row.feature == feature)

    def to_json(self) -> dict[str, Any]:
        """The plan as plain values; the keys that schema 1 names are always there."""
        return {
            "schema": SCHEMA,
            "environment": {**self.environment, "trees": dict(self.trees)},
            "features": [
                {
                    "feature": slug,
                    "decisions": [_as_json(r.upstream, r.decision) for r in self.rows_of(slug)],
                }
                for slug in self.features
            ],
        }

    def problems(self) -> list[PeriodicError]:
        """One error for each row that is unsupported and whose feature may not be missing."""
        return [
            PeriodicError(
                f"{row.feature} cannot be had on {row.upstream}: {row.decision.reason}.",
                feature=row.feature,
                tree=self.trees.get(row.upstream, "not installed"),
                target=row.decision.target,
                expected=row.decision.expected,
                found=row.decision.found,
                remedy=f"{row.decision.remedy} "
                f"--allow-missing {row.feature} starts without the feature.",
            )
            for row in self.rows
            if isinstance(row.decision, Unsupported) and row.feature not in self.allow_missing
        ]

    def dropped(self) -> tuple[str, ...]:
        """Slugs that are on, cannot be had here, and may be missing: the run goes without them."""
        return tuple(slug for slug in self._unsupported() if slug in self.allow_missing)

    def refused(self) -> tuple[str, ...]:
        """Slugs that are on, cannot be had here, and may not be missing: no launch starts."""
        return tuple(slug for slug in self._unsupported() if slug not in self.allow_missing)

    def _unsupported(self) -> tuple[str, ...]:
        missing = {row.feature for row in self.rows if isinstance(row.decision, Unsupported)}
        return tuple(slug for slug in self.features if slug in missing)

    def off(self, feature: str) -> str:
        """Why a feature is off on every upstream that it touches; empty where it is not."""
        decisions = [row.decision for row in self.rows_of(feature)]
        is_off = decisions and all(isinstance(decision, Off) for decision in decisions)
        return decisions[0].reason if is_off else ""


def _as_json(upstream: str, decision: Decision) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "upstream": upstream,
        "decision": word(decision),
        "reason": decision.reason,
        "evidence": [{"path": e.path, "line": e.line, "what": e.what} for e in decision.evidence],
    }
    if isinstance(decision, Inject):
        entry["bindings"] = list(decision.bindings)
        entry["in_sources"] = list(decision.in_sources)
    if isinstance(decision, Unsupported):
        for key in ("target", "expected", "found", "remedy"):
            entry[key] = getattr(decision, key)
    return entry


@dataclass(frozen=True, slots=True)
class _Question:
    """One feature on one upstream, as it was asked for."""

    slug: str
    upstream: str
    probe: Probe
    settings: FeatureSettings
    accept_drift: bool
    replacements: tuple[Replacement, ...]


def make_plan(
    features: Sequence[type[Feature]],
    on: Collection[str],
    trees: Mapping[str, Tree],
    accept_drift: Collection[str] = (),
    allow_missing: Collection[str] = (),
    environment: Mapping[str, Any] | None = None,
    settings: Mapping[str, FeatureSettings] | None = None,
    idle: Mapping[str, str] | None = None,
    replacements: Sequence[Replacement] = (),
) -> Plan:
    """Decide every known feature on every upstream that it touches.

    on: slugs that the user asked for; the others are off and no tree is read for them.
    trees: upstream to its tree; one that is missing is not installed.
    accept_drift: slugs whose bindings may meet shapes that are not known; recorded in the reason.
    settings: slug to its settings, where they are not the defaults. A setting that is on may
        need bindings of its own; one that is None takes them where the tree's shapes are known.
    idle: slug to why this run has nothing to do for a feature: one that cannot be had is then off.
    replacements: changes that make bindings needless in a tree that has them: these are left out.

    Raises PeriodicError where `on` or `accept_drift` names a feature that is not known.
    """
    slugs = [feature.slug for feature in features]
    check_slugs("--plugins", on, slugs)
    check_slugs("--accept-drift", accept_drift, slugs)
    questions = [
        _Question(
            feature.slug,
            upstream,
            probe,
            chosen,
            feature.slug in accept_drift,
            tuple(replacements),
        )
        for feature in features
        for chosen in [(settings or {}).get(feature.slug) or feature.settings_model()]
        for upstream, probe in _in_order(_probes_of(feature))
    ]
    rows = [
        Row(q.slug, q.upstream, _decide(q, trees.get(q.upstream)))
        if q.slug in on
        else Row(q.slug, q.upstream, Off("not asked for"))
        for q in questions
    ]
    return Plan(
        tuple(slugs),
        tuple(_without_needless(rows, idle or {})),
        {upstream: tree.name for upstream, tree in trees.items()},
        dict(surroundings.describe() if environment is None else environment),
        tuple(allow_missing),
    )


def _without_needless(rows: Sequence[Row], idle: Mapping[str, str]) -> list[Row]:
    """The rows, with a feature off that cannot be had and for which the run has nothing to do."""
    missing = {r.feature: r.decision.reason for r in rows if isinstance(r.decision, Unsupported)}
    return [
        replace(row, decision=Off(f"{idle[row.feature]}; besides, {missing[row.feature]}"))
        if row.feature in idle and row.feature in missing
        else row
        for row in rows
    ]


def _probes_of(feature: type[Feature]) -> Mapping[str, Probe]:
    """The probes of a feature; for one of somebody else's plugin, what its hooks need."""
    if feature.slug in PROBES:
        return PROBES[feature.slug]
    called_by: dict[str, list[str]] = {}
    for hook in HOOK_BINDINGS:
        if hasattr(feature, hook):
            for upstream in upstream_bindings(hook):
                called_by.setdefault(upstream, []).append(hook)
    return {u: partial(_by_hooks, hooks) for u, hooks in (called_by or {"miles": []}).items()}


def _in_order(probes: Mapping[str, Probe]) -> list[tuple[str, Probe]]:
    return [(upstream, probes[upstream]) for upstream in UPSTREAMS if upstream in probes]


def _by_hooks(hooks: Sequence[str], tree: Tree) -> Decision:
    if not hooks:
        return Unsupported(
            "it implements no hook, so that it would do nothing",
            "Implement one of the hooks in docs/hooks.md.",
            expected=f"one of {', '.join(HOOK_BINDINGS)}",
            found="none of them",
        )
    return Inject(f"implements {', '.join(hooks)}", (), names_for_hooks(hooks, tree))


def _decide(question: _Question, tree: Tree | None) -> Decision:
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


def _with_settings(decision: Decision, question: _Question, tree: Tree) -> Decision:
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


def _offered(question: _Question, tree: Tree) -> tuple[tuple[str, ...], tuple[str, ...]]:
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


def trees_from(options: Sequence[str], before: Path | None = None) -> dict[str, Tree]:
    """`["sglang=DIR", …]` to trees; an upstream without an option is the installed one, if any.

    before: see `Tree.installed`. Raises PeriodicError on bad syntax, an unknown or
    repeated upstream, and a folder that holds no such package.
    """
    given: dict[str, Tree] = {}
    for option in options:
        upstream, equals, folder = option.partition("=")
        if not (equals and upstream and folder):
            raise PeriodicError(
                f"--tree {option!r} is not an upstream and a folder.",
                remedy="Write it as --tree sglang=DIR.",
            )
        if upstream not in UPSTREAMS:
            raise PeriodicError(
                f"No upstream is named {upstream!r}.", remedy=did_you_mean(upstream, UPSTREAMS)
            )
        if upstream in given:
            raise PeriodicError(
                f"--tree names {upstream} twice.", remedy=f"Give one folder for {upstream}."
            )
        given[upstream] = Tree.at(upstream, Path(folder))
    installed = {u: Tree.installed(u, before) for u in UPSTREAMS if u not in given}
    found = given | {u: tree for u, tree in installed.items() if tree is not None}
    return {upstream: found[upstream] for upstream in UPSTREAMS if upstream in found}
