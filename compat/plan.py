"""Feature x upstream to a decision, made before anything starts and the same in every process."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from miles_periodic.compat import environment as surroundings
from miles_periodic.compat.decide import Question, decide, probes_of
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.conditions import Replacement
from miles_periodic.hooks.decisions import UPSTREAMS, Decision, Inject, Off, Unsupported, word
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.feature import Feature, FeatureSettings
from miles_periodic.hooks.nearest_name import did_you_mean
from miles_periodic.hooks.selection import check_slugs

SCHEMA = 1


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
        Question(
            feature.slug,
            upstream,
            probe,
            chosen,
            feature.slug in accept_drift,
            tuple(replacements),
        )
        for feature in features
        for chosen in [(settings or {}).get(feature.slug) or feature.settings_model()]
        for upstream, probe in probes_of(feature)
    ]
    rows = [
        Row(q.slug, q.upstream, decide(q, trees.get(q.upstream)))
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
