"""What of a feature goes into a tree's sources, and what is there already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from miles_periodic.compat import fingerprints
from miles_periodic.compat.catalog import (
    ALWAYS,
    BINDINGS,
    SETTING_BINDINGS,
    bindings_named,
    every_name,
    names_for_sessions,
    names_for_settings,
)
from miles_periodic.compat.drift import without_known_shape
from miles_periodic.compat.expiry import remaining
from miles_periodic.compat.probes import PROBES
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.binding_points import names_at, points_in
from miles_periodic.hooks.conditions import Replacement
from miles_periodic.hooks.decisions import Inject, Unsupported
from miles_periodic.hooks.feature import Feature


@dataclass(frozen=True, slots=True)
class Points:
    """A feature's bindings on a tree, all of known shapes.

    by_module: module to the names of the bindings that it puts in, in the catalog's order.
    without: targets of no known shape whose bindings only some setting or run would need.
    """

    by_module: Mapping[str, tuple[str, ...]]
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Nothing:
    """Nothing goes into the tree's sources, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Drift:
    """A target that the feature needs is missing, or of an unknown shape."""

    file: str
    target: str
    expected: str
    found: str
    remedy: str


def points_of(
    feature: type[Feature], tree: Tree, replacements: Sequence[Replacement]
) -> Points | Nothing | Drift:
    """What a feature with its default settings puts into a tree, as `miles plan` decides it.

    Besides, what its other settings, and runs with a session server, would bind where the tree's
    shapes are known: a binding that a run does not ask for does nothing.
    """
    probe = PROBES.get(feature.slug, {}).get(tree.upstream)
    if probe is None:
        return Nothing(f"it touches nothing in {tree.upstream}")
    decision = probe(tree)
    if isinstance(decision, Unsupported):
        return Nothing(_cannot_be_had(decision))
    on = feature.settings_model().names_on()
    own = decision.bindings if isinstance(decision, Inject) else ()
    needed = remaining((*own, *_of_settings(feature, on, tree)), replacements, tree)
    if (unknown := without_known_shape(needed, tree)) != ():
        return _drift(unknown[0], tree)
    settings = feature.settings_model()
    offered, _ = _known(_groups(feature, settings.names_left_open(), tree), tree, replacements)
    if {*needed, *offered} <= set(every_name(ALWAYS.get(tree.upstream, ()))):
        return Nothing(f"native: {decision.reason}")
    others = SETTING_BINDINGS.get(feature.slug, {}).get(tree.upstream, {})
    sessions = names_for_sessions(feature.slug, tree.upstream, tree)
    groups = [*_groups(feature, others, tree), sessions]
    names, without = _known(groups, tree, replacements)
    return Points(_by_module((*needed, *names)), without)


def carried(names: Iterable[str], tree: Tree) -> tuple[str, ...]:
    """Those of the bindings that stand at a point in their module's sources."""
    return tuple(name for name in names if name in _carried_by(BINDINGS[name].module, tree))


def _cannot_be_had(decision: Unsupported) -> str:
    parts = ((name, getattr(decision, name)) for name in ("target", "expected", "found"))
    known = [f"{name}: {text}" for name, text in parts if text]
    return "; ".join([f"cannot be had here: {decision.reason}", *known])


def _of_settings(feature: type[Feature], settings: Iterable[str], tree: Tree) -> tuple[str, ...]:
    return names_for_settings(feature.slug, tree.upstream, settings, tree)


def _groups(feature: type[Feature], settings: Iterable[str], tree: Tree) -> list[tuple[str, ...]]:
    return [_of_settings(feature, (setting,), tree) for setting in settings]


def _known(
    groups: Iterable[Sequence[str]], tree: Tree, replacements: Sequence[Replacement]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names in those groups of which every target is known, and the targets that are not."""
    names, without = [], []
    for group in groups:
        left = remaining(group, replacements, tree)
        unknown = without_known_shape(left, tree)
        if unknown:
            without += unknown
        else:
            names += left
    return tuple(names), tuple(dict.fromkeys(without))


def _by_module(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    by_module: dict[str, tuple[str, ...]] = {}
    for binding in bindings_named(names):
        by_module[binding.module] = (*by_module.get(binding.module, ()), binding.name)
    return by_module


def _drift(target: str, tree: Tree) -> Drift:
    module = target.partition(":")[0]
    path = tree.file(module)
    shape = fingerprints.of_target(tree, target)
    known = fingerprints.known_shapes().get(target, ())
    alike = [k for k in known if shape and k.fingerprint.signature == shape.signature] or known
    shown = [f"{k.fingerprint.signature} {k.fingerprint.content} ({k.label})" for k in alike]
    labels = ", ".join(k.label for k in known) or "none recorded"
    return Drift(
        tree.relative(path) if path else module,
        target,
        expected="; ".join(shown) or "a recorded shape",
        found=f"{shape.signature} {shape.content}" if shape else "no such definition",
        remedy=f"Use a tree whose shape is known: {labels}.",
    )


def _carried_by(module: str, tree: Tree) -> frozenset[str]:
    source = tree.module(module)
    points = points_in(source.text) if source else {}
    return frozenset(name for text in points.values() for name in names_at(text))
