"""What a feature states about itself; its hook implementations are methods of the same class."""

from __future__ import annotations

from typing import ClassVar, get_args

import pluggy
from pydantic import BaseModel, ConfigDict

PROJECT_NAME = "miles-periodic"

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)


class FeatureSettings(BaseModel):
    """Base of every feature's settings: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def names_on(self) -> tuple[str, ...]:
        """The settings that are on; a number is on also where it is 0, for it bounds something."""
        return tuple(n for n, v in self if v or (v == 0 and not isinstance(v, bool)))

    def names_left_open(self) -> tuple[str, ...]:
        """The `bool | None` settings left at None: on wherever they can be had."""
        fields = type(self).model_fields
        return tuple(n for n, v in self if v is None and bool in get_args(fields[n].annotation))


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
    #: Keys of the ledger: the upstream pull requests and issues that matter to the feature.
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
