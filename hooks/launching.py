"""Hook specs on what a run starts: Miles's command line and its SGLang servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from miles_periodic.hooks.feature import hookspec
from miles_periodic.hooks.values import ServerGroup


@hookspec
def complete_arguments(arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Arguments of Miles that a feature needs to have another value.

    Called in the driver right after Miles parsed its command line. `arguments` maps Miles's names
    to the parsed values. Returns the ones to change, or `None`; raises `PeriodicError` where the
    command line asks for something that the feature cannot work with. Composed: two features that
    set one argument differently are an error that names both.
    """


@hookspec
def server_arguments(servers: ServerGroup) -> Mapping[str, Any] | None:
    """Arguments of SGLang's servers that a feature needs to have another value.

    Called in the driver once per group of equal servers right after `complete_arguments`, so that
    a refusal comes before Ray or a GPU is touched, and again in each engine's process, where the
    answer is set. `servers` is the group: its role, its arguments by SGLang's names, and what this
    tree of SGLang refuses. Returns the arguments to change, or `None`; raises `PeriodicError` where
    the group cannot have the feature. Composed: two features that set one argument differently are
    an error that names both.
    """


@hookspec
def check_running_server(
    servers: ServerGroup,
    report: Mapping[str, Any],
    generate: Callable[[Mapping[str, Any]], Mapping[str, Any]],
) -> None:
    """Whether a server that came up does what a feature set it up for.

    Called in each engine's process, beside the run, once its server is healthy. `servers` is the
    group as it was started; `report` is what the server says of itself (`/server_info`);
    `generate` sends the body of a `/generate` request to this server and returns the response: for
    a decode server it waits for a prefill server and sends to both. Raises `PeriodicError` where
    the server does not do it, which ends the run. Composed; the answer is not used.
    """
