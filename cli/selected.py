"""Options to features, settings and plan: everything that can be wrong is found here."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from miles_periodic.cli import messages
from miles_periodic.cli.options import Selection
from miles_periodic.compat.binding import Binding
from miles_periodic.compat.catalog import bindings_named
from miles_periodic.compat.cpu.stand_in import TRAINER_VARIABLE
from miles_periodic.compat.manifest import GATE, RUN_ID, FeatureReference
from miles_periodic.compat.plan import Plan, make_plan, trees_from
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.decisions import Inject
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.feature import Feature, FeatureSettings
from miles_periodic.hooks.manager import build_manager, installed_plugins
from miles_periodic.hooks.selection import check_slugs, check_together, choose, parse
from miles_periodic.hooks.settings import resolve, unread
from miles_periodic.upstream.rows import replacements


@dataclass(frozen=True, slots=True)
class Selected:
    """The features that are on, their settings, and every feature that could be.

    named: slugs of those that the user asked for by name, not as a plugin's default.
    """

    features: tuple[type[Feature], ...]
    settings: Mapping[str, FeatureSettings]
    known: tuple[type[Feature], ...]
    named: tuple[str, ...] = ()

    def idle(self, roles: Collection[str]) -> dict[str, str]:
        """Slug to reason of the features that have nothing to do in a run with those servers.

        One that was asked for by name is never idle here: where it cannot be had, that is said.
        """
        return {
            feature.slug: f"no {_servers_of(feature)}"
            for feature in self._for_some_servers()
            if not set(roles) & set(feature.server_roles)
        }

    def needs_servers(self) -> dict[str, str]:
        """Slug to the servers, in words, without which the feature is idle."""
        return {feature.slug: _servers_of(feature) for feature in self._for_some_servers()}

    def _for_some_servers(self) -> list[type[Feature]]:
        return [f for f in self.features if f.server_roles and f.slug not in self.named]

    def without(self, slugs: Sequence[str]) -> Selected:
        """The same without some features; PeriodicError on a slug that is none."""
        check_slugs("--without", slugs, [feature.slug for feature in self.known])
        features = tuple(f for f in self.features if f.slug not in slugs)
        check_together(features)
        return replace(self, features=features)

    def none(self) -> Selected:
        """Nothing on."""
        return replace(self, features=())

    def references(self, without: Sequence[str] = ()) -> tuple[FeatureReference, ...]:
        """The features as the manifest carries them."""
        return tuple(
            FeatureReference.of(feature, self.settings[feature.slug])
            for feature in self.features
            if feature.slug not in without
        )


def _servers_of(feature: type[Feature]) -> str:
    return f"{' or '.join(feature.server_roles)} servers"


def select_features(selection: Selection, *, default: str | None = None) -> Selected:
    """What a selection asks for; PeriodicError names whatever is wrong with it.

    A variable that looks like ours and that nothing reads is a warning.
    default: the `--plugins` text where the command line has none; None selects nothing.
    """
    for variable, remedy in unread(os.environ, (GATE, RUN_ID, TRAINER_VARIABLE)).items():
        messages.warning(f"nothing reads the environment variable {variable}. {remedy}")
    text = selection.plugins if selection.plugins is not None else default
    names = tuple(installed_plugins(names=()))
    choices = parse(text, names) if text is not None else ()
    wanted = [choice.plugin for choice in choices]
    available = installed_plugins(
        names=wanted or None, allow_missing=selection.allow_missing, skipped=_say_skipped
    )
    features = choose([c for c in choices if not _was_skipped(c, selection, available)], available)
    known = tuple(feature for plugin in available.values() for feature in plugin)
    slugs = [feature.slug for feature in known]
    check_slugs("--allow-missing", selection.allow_missing, [*slugs, *available])
    check_slugs("--accept-drift", selection.accept_drift, slugs)
    settings = resolve(
        features,
        file=selection.config,
        environment=os.environ,
        assignments=selection.assignments,
        known=known,
    )
    build_manager([_made(feature, settings[feature.slug]) for feature in features])
    named = tuple(slug for choice in choices for slug in choice.only)
    return Selected(features, settings, known, named)


def _made(feature: type[Feature], settings: FeatureSettings) -> Feature:
    try:
        return feature(settings)
    except PeriodicError:
        raise
    except Exception as error:
        raise PeriodicError(
            f"{feature.slug} cannot be made: {type(error).__name__}: {error}.",
            feature=feature.slug,
            remedy=f"Repair {feature.__module__}, or take it out: -{feature.slug}.",
        ) from error


def _was_skipped(choice, selection: Selection, available: Mapping[str, Sequence]) -> bool:
    """Whether a chosen plugin could not be loaded and may be missing."""
    return choice.plugin in selection.allow_missing and not available.get(choice.plugin)


def _say_skipped(error: PeriodicError) -> None:
    messages.say("skipped", error, "yellow")


def plan_for(
    selected: Selected,
    selection: Selection,
    trees: Mapping[str, Tree] | None = None,
    *,
    before: Path | None = None,
    idle: Mapping[str, str] | None = None,
) -> Plan:
    """The plan for the installed trees, or for `trees`.

    before: the folder that the run's script has in front of its path. idle: see `make_plan`.
    """
    return make_plan(
        selected.known,
        on=[feature.slug for feature in selected.features],
        trees=trees_from((), before) if trees is None else trees,
        accept_drift=selection.accept_drift,
        allow_missing=selection.allow_missing,
        idle=idle,
        settings=selected.settings,
        replacements=replacements(),
    )


def bindings_of(plan: Plan, without: Sequence[str] = ()) -> tuple[Binding, ...]:
    """Every binding that the plan injects, each once, in the catalog's order."""
    names = {
        name
        for row in plan.rows
        if row.feature not in without and isinstance(row.decision, Inject)
        for name in row.decision.bindings
    }
    return bindings_named(names)


def in_sources_of(plan: Plan, without: Sequence[str] = ()) -> tuple[str, ...]:
    """Those of the plan's bindings that patch sets have put into the trees' sources, sorted."""
    rows = [row for row in plan.rows if row.feature not in without]
    found = (row.decision.in_sources for row in rows if isinstance(row.decision, Inject))
    return tuple(sorted({name for names in found for name in names}))
