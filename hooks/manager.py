"""Entry points to features, and features to the pluggy manager of one process."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType

import pluggy

from miles_periodic.hooks import (
    checkpointing,
    launching,
    rollout,
    routing,
    serving,
    sessions,
    training,
)
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.feature import PROJECT_NAME, Feature, FeatureSettings

#: An entry point of this group is a callable that returns the plugin's features, in order.
FEATURE_GROUP = "miles_periodic.features"

_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")

#: Hooks that replace a decision: two features that implement one are refused, unless one of them
#: marks its own `trylast`: such a default gives way.
EXCLUSIVE_HOOKS = (
    "routed_experts_of_pair",
    "routed_experts_of_response",
    "routed_experts_of_session",
    "routed_experts_on_the_wire",
    "split_train_batch",
    "routed_experts_for_training",
    "offloaded_optimizer",
    "token_log_probs",
    "checkpoint_waves",
    "export_checkpoint",
    "routing_key",
    "data_parallel_rank",
    "expected_prefix_tokens",
    "server_for_request",
)


def load_plugin(entry_point: EntryPoint) -> tuple[type[Feature], ...]:
    """The features of one installed plugin; PeriodicError names the plugin that cannot load."""
    try:
        features = tuple(entry_point.load()())
        for feature in features:
            _check_stated(feature)
        slugs = [feature.slug for feature in features]
        if twice := next((slug for slug in slugs if slugs.count(slug) > 1), None):
            raise ValueError(f"it brings {twice!r} twice")
        return features
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        owner = entry_point.dist.name if entry_point.dist else entry_point.value
        raise PeriodicError(
            f"The plugin {entry_point.name!r} ({owner}) cannot be loaded: "
            f"{type(error).__name__}: {error}.",
            remedy=f"Repair or remove {owner}, or take {entry_point.name!r} out of --plugins; "
            f"--allow-missing {entry_point.name} runs without it.",
        ) from error


def _check_stated(feature: object) -> None:
    """Raise TypeError or ValueError where a plugin's feature does not state what Feature asks."""
    if not (isinstance(feature, type) and issubclass(feature, Feature)):
        raise TypeError(f"{feature!r} is no subclass of Feature")
    slug = getattr(feature, "slug", None)
    if not isinstance(slug, str) or not _SLUG.fullmatch(slug):
        raise ValueError(
            f"{feature.__qualname__}.slug is {slug!r}; lower case words joined by hyphens are taken"
        )
    model = feature.settings_model
    if not (isinstance(model, type) and issubclass(model, FeatureSettings)):
        raise TypeError(f"{slug}'s settings_model is no subclass of FeatureSettings")
    for name in ("conflicts", "requires", "pull_requests"):
        if not isinstance(getattr(feature, name), tuple | list):
            raise TypeError(f"{slug}'s {name} is no tuple of names")


def installed_plugins(
    names: Sequence[str] | None = None,
    allow_missing: Sequence[str] = (),
    skipped: Callable[[PeriodicError], None] = lambda error: None,
) -> MappingProxyType[str, tuple[type[Feature], ...]]:
    """Plugin name to its features, for `names` or for every plugin installed.

    A plugin that is not named is never imported. One that cannot load and stands in
    `allow_missing` is left empty and handed to `skipped`; else its PeriodicError is raised.
    """
    available: dict[str, tuple[type[Feature], ...]] = {}
    for entry_point in entry_points(group=FEATURE_GROUP):
        if entry_point.name in available:
            raise PeriodicError(
                f"Two installed packages bring a plugin {entry_point.name!r}; "
                f"one is {entry_point.value}.",
                remedy="Uninstall one of them.",
            )
        if names is not None and entry_point.name not in names:
            available[entry_point.name] = ()
            continue
        try:
            available[entry_point.name] = load_plugin(entry_point)
        except PeriodicError as error:
            if entry_point.name not in allow_missing:
                raise
            skipped(error)
            available[entry_point.name] = ()
    return MappingProxyType(available)


def build_manager(features: Sequence[Feature]) -> pluggy.PluginManager:
    """A manager of its own in which `features` are registered, each checked before it is.

    Raises PeriodicError where two features implement one exclusive hook or a hook is unknown.
    """
    manager = pluggy.PluginManager(PROJECT_NAME)
    for specs in (launching, rollout, sessions, routing, serving, training, checkpointing):
        manager.add_hookspecs(specs)
    for hook in EXCLUSIVE_HOOKS:
        owners = [feature.slug for feature in features if _replaces(manager, feature, hook)]
        if len(owners) > 1:
            raise PeriodicError(
                f"{' and '.join(owners)} both replace the decision {hook}.",
                feature=owners[0],
                target=hook,
                remedy=f"Take one of them out: -{owners[0]} or -{owners[1]}.",
            )
    for feature in features:
        _check_marked(manager, feature)
        try:
            manager.register(feature, name=feature.slug)
            manager.check_pending()
        except pluggy.PluginValidationError as error:
            raise PeriodicError(
                f"{feature.slug} implements a hook that is not as specified: {error}.",
                feature=feature.slug,
                remedy=f"Repair {type(feature).__module__}, or take it out: -{feature.slug}.",
            ) from error
    return manager


def _replaces(manager: pluggy.PluginManager, feature: Feature, hook: str) -> bool:
    """Whether a feature claims a decision, and not only its default."""
    options = manager.parse_hookimpl_opts(feature, hook) if hasattr(feature, hook) else {}
    return hasattr(feature, hook) and not (options or {}).get("trylast")


def _check_marked(manager: pluggy.PluginManager, feature: Feature) -> None:
    """Raise PeriodicError where a method has a hook's name and would never be called as one."""
    for hook in vars(manager.hook):
        method = getattr(type(feature), hook, None)
        if callable(method) and manager.parse_hookimpl_opts(feature, hook) is None:
            raise PeriodicError(
                f"{feature.slug} has a method {hook} that is not marked as a hook.",
                feature=feature.slug,
                target=hook,
                remedy=f"Mark {type(feature).__qualname__}.{hook} with @hookimpl, or rename it.",
            )
