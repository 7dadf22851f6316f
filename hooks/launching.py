"""Hook specs that the driver calls before Ray or a GPU is touched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from miles_periodic.hooks.feature import hookspec


@hookspec
def complete_arguments(arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Arguments of Miles that a feature needs to have another value.

    Called in the driver right after Miles parsed its command line. `arguments` maps Miles's names
    to the parsed values. Returns the ones to change, or `None`; raises `PeriodicError` where the
    command line asks for something that the feature cannot work with. Composed: two features that
    set one argument differently are an error that names both.
    """
