"""What a release's sources say: each feature's decision, and which changes of the ledger it has."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from miles_periodic.compat import fingerprints
from miles_periodic.compat.catalog import BINDINGS
from miles_periodic.compat.conditions import judge
from miles_periodic.compat.plan import make_plan
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.conditions import Condition, Replacement
from miles_periodic.hooks.decisions import Inject, word
from miles_periodic.hooks.feature import Feature

#: A row of the ledger that can be proved: its key to its upstream and its condition.
Claims = Mapping[str, tuple[str, Condition]]


@dataclass(frozen=True, slots=True)
class Fact:
    """One feature on one tree: the decision in a word, its reason, and what it would bind."""

    decision: str
    reason: str
    bindings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """What one release, or some other trees, say.

    label: the release's, such as `sglang-0.5.12`, or what the trees are called.
    decisions: upstream to feature slug to fact. claims: key of a row to whether its change is in.
    alike: binding that some decision puts in, to the recorded trees (compat/known_shapes) in which
        all its targets have the shape that they have here.
    """

    label: str
    decisions: Mapping[str, Mapping[str, Fact]]
    claims: Mapping[str, bool]
    alike: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values, in an order that does not depend on how they were found."""
        return {
            "label": self.label,
            "decisions": {
                upstream: {slug: asdict(fact) for slug, fact in sorted(by_slug.items())}
                for upstream, by_slug in sorted(self.decisions.items())
            },
            "claims": dict(sorted(self.claims.items())),
            "alike": {name: list(labels) for name, labels in sorted(self.alike.items())},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Facts:
        """The facts that `to_json` wrote."""
        decisions = {
            upstream: {
                slug: Fact(part["decision"], part["reason"], tuple(part["bindings"]))
                for slug, part in by_slug.items()
            }
            for upstream, by_slug in values["decisions"].items()
        }
        alike = {name: tuple(labels) for name, labels in values["alike"].items()}
        return cls(values["label"], decisions, values["claims"], alike)


def facts_of(
    label: str,
    trees: Mapping[str, Tree],
    features: Sequence[type[Feature]],
    replacements: Sequence[Replacement],
    claims: Claims,
) -> Facts:
    """Plan every feature with its default settings on `trees`, and judge every claim on them."""
    plan = make_plan(
        features,
        [feature.slug for feature in features],
        trees,
        environment={},
        replacements=replacements,
    )
    decisions: dict[str, dict[str, Fact]] = {upstream: {} for upstream in trees}
    for row in plan.rows:
        if row.upstream in trees:
            bindings = row.decision.bindings if isinstance(row.decision, Inject) else ()
            fact = Fact(word(row.decision), row.decision.reason, bindings)
            decisions[row.upstream][row.feature] = fact
    facts = [fact for by_slug in decisions.values() for fact in by_slug.values()]
    names = {name for fact in facts for name in fact.bindings}
    alike = {name: _alike(name, trees[BINDINGS[name].upstream]) for name in sorted(names)}
    return Facts(label, decisions, dict(_judged(claims, trees)), alike)


def _alike(name: str, tree: Tree) -> tuple[str, ...]:
    """The recorded trees in which every target of a binding has the shape that it has in `tree`."""
    known = fingerprints.known_shapes()
    labels = [
        {shape.label for shape in known.get(target, ()) if shape.fingerprint == here}
        for target in BINDINGS[name].targets
        for here in [fingerprints.of_target(tree, target)]
    ]
    return tuple(sorted(set.intersection(*labels)))


def _judged(claims: Claims, trees: Mapping[str, Tree]) -> Iterator[tuple[str, bool]]:
    for key, (upstream, condition) in claims.items():
        if upstream in trees:
            yield key, judge(condition, trees[upstream]).holds


def recorded(label: str) -> Facts | None:
    """The facts on file of a release, or None where it has none."""
    path = _folder() / f"{label}.json"
    return Facts.from_json(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def record(facts: Facts) -> Path:
    """Put a release's facts on file, and return the file."""
    path = _folder() / f"{facts.label}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(facts.to_json(), indent=1) + "\n", encoding="utf-8")
    return path


def differences(before: Facts | None, now: Facts) -> Iterator[str]:
    """What is different now, a line each; nothing where the facts agree."""
    if before is None:
        yield f"{now.label} is not on file"
        return
    for upstream, by_slug in now.decisions.items():
        earlier = before.decisions.get(upstream, {})
        for slug in sorted({*by_slug, *earlier}):
            if (was := earlier.get(slug)) != (fact := by_slug.get(slug)):
                yield f"{now.label}: {slug} on {upstream}: {_changed(was, fact)}"
    for name in sorted({*before.alike, *now.alike}):
        if (was := before.alike.get(name, ())) != (labels := now.alike.get(name, ())):
            yield (
                f"{now.label}: the targets of {name} were as in {_listed(was)}, "
                f"are as in {_listed(labels)}"
            )
    for key in sorted({*before.claims, *now.claims}):
        if (was := before.claims.get(key)) != (holds := now.claims.get(key)):
            yield f"{now.label}: {key} was {_present(was)}, is {_present(holds)}"


def _changed(was: Fact | None, now: Fact | None) -> str:
    if was is None or now is None:
        return "is new" if now else "is gone"
    if was.decision != now.decision:
        return f"was {was.decision} ({was.reason}), is {now.decision} ({now.reason})"
    if was.bindings != now.bindings:
        return f"bound {', '.join(was.bindings)}; binds {', '.join(now.bindings)}"
    return f"was {was.reason!r}, is {now.reason!r}"


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(labels) or "no recorded tree"


def _present(holds: bool | None) -> str:
    return {True: "there", False: "not there", None: "not looked for"}[holds]


def _folder() -> Path:
    return Path(__file__).with_name("facts")
