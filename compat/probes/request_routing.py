"""Who chooses the server and the rank of a request, and by what."""

from __future__ import annotations

import ast

from miles_periodic.compat.catalog import binding_names
from miles_periodic.compat.follow import follow
from miles_periodic.compat.probes.sightings import mentions
from miles_periodic.compat.probes.unknown import unknown
from miles_periodic.compat.tree import SourceModule, Tree
from miles_periodic.hooks.decisions import Decision, Evidence, Inject, Native, Unsupported

SLUG = "request-routing"
_SERVER = ("srt/managers",)
_RANK_FIELDS = ("routed_dp_rank", "data_parallel_rank")
_LOADS = ("/v1/loads", "/get_load")
_ROUTER = "miles.router.router:MilesRouter"
_CHOICE = f"{_ROUTER}._use_url"
_POLICY = "policy_uses_routing_key"
_HEADER = "X-SMG-Routing-Key"


def sglang(tree: Tree) -> Decision:
    """Native where a request's rank reaches the choice of a rank, and the load can be read."""
    loads = _told_loads(tree)
    for field in _RANK_FIELDS:
        trail = follow(tree, "GenerateReqInput", field, _SERVER, through="Req")
        if trail.consumer and loads:
            reason = f"{field} chooses the rank, and the server tells its load"
            return Native(reason, trail.evidence + loads)
    missing = trail.missing if loads else f"none of {', '.join(_LOADS)} is served"
    return Unsupported(
        f"no request can choose its rank, or no load can be read: {missing}",
        f"Use an SGLang tree with {_RANK_FIELDS[0]} and {_LOADS[0]}; 0.5.10 is a release that has "
        "both.",
        trail.evidence + loads,
        target=trail.name,
        expected="a rank in the request that the data-parallel controller takes",
        found=missing,
    )


def _told_loads(tree: Tree) -> tuple[Evidence, ...]:
    """Where the load is served, by its newest path."""
    for path in _LOADS:
        for module in tree.containing(f'"{path}"', "srt/entrypoints"):
            for function in module.functions:
                if any(mentions(decorator, path) for decorator in function.decorator_list):
                    return (module.evidence(function, f"{function.name} serves {path}"),)
    return ()


def miles(tree: Tree) -> Decision:
    """Inject where the Python router chooses by open requests alone."""
    found = tree.find(_CHOICE)
    if found is None:
        return unknown(
            SLUG,
            "Miles's Python router is not where we know it",
            use="miles-rl 0.0.2 or Miles main",
            target=_CHOICE,
            expected="the method that chooses a server",
            found="no such method",
        )
    module, choice = found
    evidence = (
        module.evidence(choice, f"{module.qualname(choice)} looks at {_looks_at(choice)}"),
        *_keys_sent(tree),
    )
    reason = (
        "the Python router (--use-miles-router) takes scores; before the Rust router only sticky "
        "keys can be had"
    )
    return Inject(reason, evidence, binding_names(SLUG, "miles", tree))


def _looks_at(choice: ast.AST) -> str:
    """The attributes of the router that its choice reads."""
    own = {
        node.attr
        for node in ast.walk(choice)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    return ", ".join(sorted(own))


def _keys_sent(tree: Tree) -> tuple[Evidence, ...]:
    """Where Miles sends a key itself, each with the policies on which that depends."""
    return tuple(
        module.evidence(function, f"{module.qualname(function)} {_condition(function)}")
        for module in tree.containing(_HEADER, "rollout")
        for function in module.functions
        if _HEADER in ast.unparse(function) and not _holds_another(module, function)
    )


def _holds_another(module: SourceModule, function: ast.AST) -> bool:
    """Whether the header stands in a function inside of this one."""
    inner = [f for f in module.functions if module.enclosing(f, type(function)) is function]
    return any(_HEADER in ast.unparse(f) for f in inner)


def _condition(function: ast.AST) -> str:
    text = ast.unparse(function)
    if _POLICY in text or "router_policy" in text:
        return "sends a key under some of --sglang-router-policy, whatever the roles' policies are"
    return "sends a key under every policy"
