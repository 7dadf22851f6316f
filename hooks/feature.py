"""What a feature states about itself; its hook implementations are methods of the same class."""

from __future__ import annotations

from typing import ClassVar

import pluggy
from pydantic import BaseModel, ConfigDict

PROJECT_NAME = "miles-periodic"

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)


class FeatureSettings(BaseModel):
    """Base of every feature's settings: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Feature:
    """One thing that a user switches on, by slug.

    A subclass states the class variables and marks the hooks it implements with `hookimpl`. One
    instance exists per process in which the feature is on, made with its settings.
    """

    #: What a user writes: lower case words joined by hyphens.
    slug: ClassVar[str]
    #: One sentence: what a run gains.
    why: ClassVar[str]
    #: The model that its table in a settings file is read into.
    settings_model: ClassVar[type[FeatureSettings]] = FeatureSettings
    #: Keys of the ledger: the upstream pull requests that would make the feature native.
    pull_requests: ClassVar[tuple[str, ...]] = ()
    #: Slugs that cannot be on together with it.
    conflicts: ClassVar[tuple[str, ...]] = ()
    #: Slugs that must be on for it to work.
    requires: ClassVar[tuple[str, ...]] = ()
    #: Roles of the SGLang servers that it is for; in a run without any it is off. Empty: any run.
    server_roles: ClassVar[tuple[str, ...]] = ()
    #: What must be true upstream for us to delete the feature.
    exit: ClassVar[str]
    #: Whether `--plugins NAME` without a list switches it on.
    default: ClassVar[bool] = True

    def __init__(self, settings: FeatureSettings | None = None) -> None:
        self.settings = settings if settings is not None else self.settings_model()
