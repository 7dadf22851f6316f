"""Miles's parsed command line, handed to the features before Ray or a GPU is touched."""

from __future__ import annotations

from typing import Any

from miles_periodic.compat.bindings import server_groups
from miles_periodic.compat.bindings.features import each_answer, merged_answers
from miles_periodic.compat.boot import member
from miles_periodic.compat.session_support import refuse_without_sessions
from miles_periodic.hooks.errors import PeriodicError


def complete(wrapped, instance, args, kwargs):
    """Symptom: a feature needs an argument of Miles to have another value than its default.

    Trigger: `parse_args` returned in the driver. Takes down: the launch, where an argument is
    unknown to this Miles or a feature refuses the command line. Safe because only arguments
    that a feature names are set, each is reported, and Miles pickles this very namespace to all
    its actors afterwards. Upstream: Miles has no plugin hook for its arguments.
    """
    arguments = wrapped(*args, **kwargs)
    _check_sessions(vars(arguments))
    for name, value in merged_answers("complete_arguments", arguments=vars(arguments)).items():
        if not hasattr(arguments, name):
            raise PeriodicError(
                f"Miles has no argument {name!r}.",
                target="miles.utils.arguments:parse_args",
                expected=name,
                found="no such argument",
                remedy="Run `miles plan`; this Miles is not one whose arguments are known.",
            )
        if getattr(arguments, name) != value:
            member().notice(f"{name}: {getattr(arguments, name)!r} -> {value!r}")
            setattr(arguments, name, value)
    server_groups.settle(arguments)
    return arguments


def _check_sessions(arguments: dict[str, Any]) -> None:
    """Refuse a session server, by name of the feature that it would be without."""
    answers = each_answer("reaches_into_sessions", arguments=arguments)
    reaching = [slug for slug, reaches in answers if reaches]
    bound = [binding.name for binding in member().manifest.bindings]
    refuse_without_sessions(reaching, bound, arguments)
