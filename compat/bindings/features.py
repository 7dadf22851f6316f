"""The features that are on in this process, as one pluggy manager."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pluggy

from miles_periodic.compat.boot import member
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.manager import build_manager


@lru_cache(maxsize=1)
def manager() -> pluggy.PluginManager:
    """The manager of the run's manifest; built once per process."""
    references = member().manifest.features
    return build_manager([_feature(reference) for reference in references])


def _feature(reference) -> Any:
    module, _, name = reference.path.partition(":")
    kind = getattr(importlib.import_module(module), name)
    return kind(kind.settings_model(**reference.settings))


def each_answer(hook: str, **arguments: Any) -> Iterator[tuple[str, Any]]:
    """The answers of a composed hook that are not None, each with its feature's slug."""
    for implementation in getattr(manager().hook, hook).get_hookimpls():
        wanted = [arguments[name] for name in implementation.argnames]
        answer = implementation.function(*wanted)
        if answer is not None:
            yield implementation.plugin_name, answer


def merged_answers(hook: str, **arguments: Any) -> dict[str, Any]:
    """The mappings that a composed hook's features answer, as one.

    Raises PeriodicError naming both features where two set one key.
    """
    merged: dict[str, Any] = {}
    owners: dict[str, str] = {}
    for slug, answer in each_answer(hook, **arguments):
        for key, value in answer.items():
            if key in owners:
                raise PeriodicError(
                    f"{owners[key]} and {slug} both set {key}.",
                    feature=slug,
                    target=hook,
                    remedy=f"Take one of them out: -{owners[key]} or -{slug}.",
                )
            merged[key], owners[key] = value, slug
    return merged
