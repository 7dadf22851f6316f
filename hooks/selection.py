"""`--plugins periodic:a,-b` to the features that are on; every wrong name is an error."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.feature import Feature
from miles_periodic.hooks.nearest_name import did_you_mean


@dataclass(frozen=True, slots=True)
class PluginChoice:
    """One plugin of a `--plugins` text: its name, the slugs asked for, and the slugs taken out."""

    plugin: str
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


def parse(text: str, plugins: Collection[str] = ()) -> tuple[PluginChoice, ...]:
    """Read `periodic`, `periodic:a,b`, `periodic:-c`, `periodic,acme:-d`, `periodic:a,acme`.

    plugins: names of the installed plugins. A name after a comma is a feature of the plugin
    before it when that one has a colon, unless it is itself in `plugins`; else it is another
    plugin. Raises PeriodicError on empty names and on a plugin named twice.
    """
    choices: list[PluginChoice] = []
    for piece in text.split(","):
        piece = piece.strip()
        if ":" in piece:
            plugin, _, first = piece.partition(":")
            choices.append(_with_slug(PluginChoice(plugin.strip()), first.strip(), text))
        elif piece not in plugins and choices and (choices[-1].only or choices[-1].without):
            choices[-1] = _with_slug(choices[-1], piece, text)
        else:
            choices.append(PluginChoice(piece))
    _check_plugin_names(choices, text)
    return tuple(choices)


def _with_slug(choice: PluginChoice, slug: str, text: str) -> PluginChoice:
    if not slug.lstrip("-"):
        raise PeriodicError(
            f"--plugins {text!r} names a feature that is empty.",
            remedy="Write features after the colon, such as periodic:delta-router-replay.",
        )
    if slug.startswith("-"):
        return PluginChoice(choice.plugin, choice.only, (*choice.without, slug[1:]))
    return PluginChoice(choice.plugin, (*choice.only, slug), choice.without)


def _check_plugin_names(choices: Sequence[PluginChoice], text: str) -> None:
    names = [choice.plugin for choice in choices]
    if not all(names):
        raise PeriodicError(
            f"--plugins {text!r} names a plugin that is empty.",
            remedy="Write --plugins periodic, or periodic:feature,-feature.",
        )
    for name in names:
        if names.count(name) > 1:
            raise PeriodicError(
                f"--plugins {text!r} names the plugin {name!r} twice.",
                remedy=f"Write its features in one list: {name}:feature,feature.",
            )


def choose(
    choices: Sequence[PluginChoice], available: Mapping[str, Sequence[type[Feature]]]
) -> tuple[type[Feature], ...]:
    """The features that are on, in the plugins' own order.

    available: plugin name to its features. Raises PeriodicError on an unknown plugin or feature,
    on a conflict and on a requirement that is off.
    """
    chosen: list[type[Feature]] = []
    for choice in choices:
        if choice.plugin not in available:
            raise PeriodicError(
                f"No plugin is named {choice.plugin!r}.",
                remedy=_plugin_meant(choice.plugin, available),
            )
        features = {feature.slug: feature for feature in available[choice.plugin]}
        for slug in (*choice.only, *choice.without):
            if slug not in features:
                raise PeriodicError(
                    f"The plugin {choice.plugin!r} has no feature {slug!r}.",
                    remedy=did_you_mean(slug, features),
                )
            if slug in choice.only and slug in choice.without:
                raise PeriodicError(
                    f"--plugins asks for {slug} and takes it out again.",
                    feature=slug,
                    remedy=f"Write {slug} or -{slug}, not both.",
                )
        wanted = choice.only or tuple(s for s, f in features.items() if f.default)
        chosen += [f for s, f in features.items() if s in wanted and s not in choice.without]
    check_together(chosen)
    return tuple(chosen)


def check_slugs(option: str, slugs: Iterable[str], known: Collection[str]) -> None:
    """Raise PeriodicError where `option` names a feature that is not among the known names."""
    for slug in slugs:
        if slug not in known:
            raise PeriodicError(
                f"{option} names {slug!r}, which is no feature.", remedy=did_you_mean(slug, known)
            )


def check_together(features: Sequence[type[Feature]]) -> None:
    """Raise PeriodicError where two features exclude each other or one misses another."""
    slugs = [feature.slug for feature in features]
    for feature in features:
        if slugs.count(feature.slug) > 1:
            owners = [f.__module__ for f in features if f.slug == feature.slug]
            raise PeriodicError(
                f"{' and '.join(owners)} both bring a feature {feature.slug}.",
                feature=feature.slug,
                remedy=f"Take one of the two out with -{feature.slug} behind its plugin's colon.",
            )
        for other in feature.conflicts:
            if other in slugs:
                raise PeriodicError(
                    f"{feature.slug} and {other} cannot be on together.",
                    feature=feature.slug,
                    remedy=f"Take one out: -{feature.slug} or -{other}.",
                )
        for other in feature.requires:
            if other not in slugs:
                raise PeriodicError(
                    f"{feature.slug} needs {other}, which is off.",
                    feature=feature.slug,
                    remedy=f"Add {other}, or take {feature.slug} out with -{feature.slug}.",
                )


def _plugin_meant(name: str, available: Mapping[str, Sequence[type[Feature]]]) -> str:
    for plugin, features in available.items():
        if name in (feature.slug for feature in features):
            return f"It is a feature: write {plugin}:{name}, and other features after a comma."
    return did_you_mean(name, available)
