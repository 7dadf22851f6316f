"""A feature's settings from three sources: command line over environment over TOML file."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import ByteSize, ValidationError

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.feature import Feature, FeatureSettings
from miles_periodic.hooks.nearest_name import did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: `MILES_PERIODIC_SET__KV_PRESERVATION__SALT=false` sets one key from the environment.
ENVIRONMENT_PREFIX = "MILES_PERIODIC_SET__"

#: What every variable of ours starts with.
FAMILY = "MILES_PERIODIC"

Layer = dict[str, dict[str, Any]]


def unread(environment: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    """Variables that look like ours and that nothing reads, each with what to do about it.

    known: the names that something reads besides the settings.
    """
    mine = sorted(name for name in environment if name.startswith(FAMILY))
    stray = [n for n in mine if n not in known and not n.startswith(ENVIRONMENT_PREFIX)]
    nearest = [*known, f"{ENVIRONMENT_PREFIX}FEATURE__KEY"]
    return {name: did_you_mean(name, nearest) for name in stray}


def resolve(
    features: Sequence[type[Feature]],
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    assignments: Sequence[str] = (),
    known: Sequence[type[Feature]] = (),
) -> dict[str, FeatureSettings]:
    """Slug to validated settings of every feature in `features`.

    known: all features that exist; a table of one that is off is allowed and ignored, a table of
    none is an error. Raises PeriodicError on unknown features and keys and on bad values.
    """
    slugs = {feature.slug: feature for feature in (*known, *features)}
    layers = [
        _from_file(file) if file else {},
        _from_environment(environment or {}, slugs),
        _from_assignments(assignments),
    ]
    for layer in layers:
        for slug, table in layer.items():
            _check_names(slug, table, slugs)
    return {f.slug: _validated(f, [layer.get(f.slug, {}) for layer in layers]) for f in features}


def _from_file(path: Path) -> Layer:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PeriodicError(
            f"The settings file {path} cannot be read: {error}.",
            remedy="Give --plugin-config a TOML file with one table per feature.",
        ) from error
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise PeriodicError(
                f"{path}: {name!r} stands outside a table.",
                remedy="Put it into its feature's table, such as [delta-router-replay].",
            )
    return tables


def _from_environment(environment: Mapping[str, str], slugs: Mapping[str, Any]) -> Layer:
    names = {slug.upper().replace("-", "_"): slug for slug in slugs}
    layer: Layer = {}
    for variable, value in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        name, _, key = variable[len(ENVIRONMENT_PREFIX) :].partition("__")
        if name not in names:
            raise PeriodicError(
                f"The environment variable {variable} names no feature.",
                remedy=did_you_mean(name, names),
            )
        layer.setdefault(names[name], {})[key.lower()] = _Written(value)
    return layer


def _from_assignments(assignments: Sequence[str]) -> Layer:
    layer: Layer = {}
    for text in assignments:
        left, equals, value = text.partition("=")
        slug, dot, key = left.strip().rpartition(".")
        if not (equals and dot and slug and key):
            raise PeriodicError(
                f"--plugin-set {text!r} is not an assignment.",
                remedy="Write it as FEATURE.KEY=VALUE.",
            )
        layer.setdefault(slug, {})[key] = _Written(value)
    return layer


class _Written(str):
    """A value as it was typed; which type it has is the setting's to say."""


def _typed(value: Any, annotation: Any) -> Any:
    """A typed text as a TOML value (1, true, [1, 2]), or as it is for a setting that is text."""
    if not isinstance(value, _Written):
        return value
    text = str(value)
    # A comment or a second line would be dropped without a word.
    if annotation is str or "\n" in text or ("#" in text and text.lstrip()[:1] not in "\"'[{"):
        return text
    try:
        literal = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return literal if isinstance(literal, bool | int | float | str | list | dict) else text


def _check_names(slug: str, table: Mapping[str, Any], slugs: Mapping[str, type[Feature]]) -> None:
    if slug not in slugs:
        raise PeriodicError(
            f"No feature is named {slug!r}.", remedy=did_you_mean(slug, slugs), feature=slug
        )
    keys = slugs[slug].settings_model.model_fields
    for key in table:
        if key not in keys:
            raise PeriodicError(
                f"{slug} has no setting {key!r}.", feature=slug, remedy=did_you_mean(key, keys)
            )


def _validated(feature: type[Feature], layers: Sequence[Mapping[str, Any]]) -> FeatureSettings:
    fields = feature.settings_model.model_fields
    merged = {
        key: _typed(value, fields[key].annotation)
        for layer in layers
        for key, value in layer.items()
    }
    try:
        return feature.settings_model(**merged)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        setting = f"{feature.slug}.{key}" if key else feature.slug
        field = fields.get(key)
        why = first["msg"].removeprefix("Value error, ").rstrip(".")
        raise PeriodicError(
            f"{setting} cannot be {first['input']!r}: {why}.",
            feature=feature.slug,
            expected=_stated(field.annotation) if field else "",
            found=repr(first["input"]),
            remedy=f"Set {setting} to a valid value.",
        ) from error


def _stated(annotation: Any) -> str:
    """What may be written for a setting of this type."""
    kind, parts = get_origin(annotation), get_args(annotation)
    if kind is Literal:
        return " or ".join(map(repr, parts))
    if kind in (Union, UnionType):
        return " or ".join(_stated(part) for part in parts if part is not NoneType)
    if annotation is ByteSize:
        return "bytes, such as 1GiB"
    return getattr(annotation, "__name__", str(annotation))
