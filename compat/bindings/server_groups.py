"""The groups of SGLang servers of a run, and the arguments that features set on them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from miles_periodic.compat.bindings.features import manager, merged_answers
from miles_periodic.compat.boot import member
from miles_periodic.compat.server_traits import (
    prefill_returns_routes,
    refusals_beside,
    stands_still,
)
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.values import Refusal, ServerGroup

#: How Miles prefixes the arguments that it hands to its servers.
_PREFIX = "sglang_"


def settle(arguments: Any) -> None:
    """Ask every feature about each group of servers, before Ray or a GPU is touched.

    arguments: Miles's parsed command line. A feature that is for roles of which the run has no
    server is said to be off. Raises PeriodicError where a group cannot have a feature.
    """
    if not manager().hook.server_arguments.get_hookimpls():
        return
    groups = list(groups_of(arguments))
    for group in groups:
        merged_answers("server_arguments", servers=group)
    roles = {group.role for group in groups}
    for slug, feature in manager().list_name_plugin():
        if feature is not None and feature.server_roles and not roles & set(feature.server_roles):
            member().notice(f"{slug} is off: no {' or '.join(feature.server_roles)} servers.")


def groups_of(arguments: Any) -> Iterator[ServerGroup]:
    """The groups that Miles will start for a command line, placeholders left out."""
    common = {
        name.removeprefix(_PREFIX): value
        for name, value in vars(arguments).items()
        if name.startswith(_PREFIX)
    }
    config = _config(arguments)
    if config is None:
        yield _group("regular", common)
        return
    for model in config.models:
        for group in model.server_groups:
            if group.worker_type != "placeholder":
                yield _group(group.worker_type, {**_stripped(group, common), **group.overrides})


def _config(arguments: Any) -> Any | None:
    """Miles's own reading of the two ways to ask for roles; None where neither is taken."""
    file = getattr(arguments, "sglang_config", None)
    if file is None and getattr(arguments, "prefill_num_servers", None) is None:
        return None
    from miles.backends.sglang_utils.sglang_config import SglangConfig

    return (
        SglangConfig.from_prefill_num_servers(arguments)
        if file is None
        else SglangConfig.from_yaml(file)
    )


def _stripped(group: Any, common: Mapping[str, Any]) -> dict[str, Any]:
    """The command line's part as Miles hands it to a role: HiCache never reaches a decode one."""
    return {
        name: value
        for name, value in common.items()
        if not (group.worker_type == "decode" and name == "enable_hierarchical_cache")
    }


def _group(role: str, arguments: Mapping[str, Any]) -> ServerGroup:
    tree = _tree()
    return ServerGroup(
        role, arguments, _refusals, prefill_returns_routes(tree), stands_still(tree, role)
    )


@lru_cache(maxsize=1)
def _tree() -> Tree:
    tree = Tree.installed("sglang")
    if tree is None:
        raise PeriodicError(
            "SGLang is not installed in this process's Python.",
            target="sglang",
            remedy="Install it on every node; `miles plan` shows which tree is found.",
        )
    return tree


def _refusals(argument: str) -> tuple[Refusal, ...]:
    return refusals_beside(_tree(), argument)


def complete(wrapped, instance, args, kwargs):
    """Symptom: a `--sglang-…` option reaches servers of every role, also where it must not.

    Trigger: an engine's process builds the arguments of its server. Takes down: that engine, and
    so the run, where SGLang does not know an argument or a feature refuses the group. Safe
    because Miles's own defaults and the group's overrides are already in what a feature sees, and
    each change is reported. Upstream: Miles has per-group overrides in `--sglang-config` only.
    """
    call = inspect.signature(wrapped).bind(*args, **kwargs)
    call.apply_defaults()
    arguments, fields_to_check = wrapped(*args, **kwargs)
    group = group_started(call.arguments["worker_type"], arguments)
    for name, value in merged_answers("server_arguments", servers=group).items():
        _check_known(name)
        if arguments.get(name) != value:
            member().notice(f"{group.role} server: {name}={value!r}")
            arguments[name] = value
    return arguments, fields_to_check


def group_started(role: str, arguments: Mapping[str, Any]) -> ServerGroup:
    """A group of which this process starts a server, with the arguments that it starts with."""
    return _group(role, dict(arguments))


def _check_known(name: str) -> None:
    from sglang.srt.server_args import ServerArgs

    if name not in inspect.signature(ServerArgs).parameters:
        raise PeriodicError(
            f"SGLang has no argument {name!r}.",
            target="sglang.srt.server_args:ServerArgs",
            expected=name,
            found="no such argument",
            remedy="Run `miles plan` on the servers' nodes; their SGLang is not the driver's.",
        )
