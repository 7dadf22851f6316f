"""Whether decode servers can keep prefixes, and who switches that on for them alone."""

from __future__ import annotations

import ast

from miles_periodic.compat.catalog import binding_names
from miles_periodic.compat.follow import follow
from miles_periodic.compat.probes.sightings import absent, key_writes
from miles_periodic.compat.probes.unknown import unknown
from miles_periodic.compat.scopes import Scopes
from miles_periodic.compat.server_traits import refusals_beside
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.decisions import Decision, Evidence, Inject, Native, Unsupported

SLUG = "decode-radix-cache"
FLAG = "disaggregation_decode_enable_radix_cache"
FIRST_RELEASE = "0.5.11"
_SETTINGS = ("srt/server_args.py", "srt/arg_groups")
_DECODE = ("srt/disaggregation",)
_ARGUMENTS = "sglang.srt.server_args:ServerArgs"
_START = "miles.backends.sglang_utils.sglang_engine:_compute_server_args"
_CONFIG = "miles.backends.sglang_utils.sglang_config:SglangConfig"


def sglang(tree: Tree) -> Decision:
    """Native where the flag is declared and decides what a decode server allocates."""
    owners = Scopes(tree, _SETTINGS).owners(FLAG)
    trail = follow(tree, next(iter(owners), "ServerArgs"), FLAG, _SETTINGS + _DECODE)
    allocating = _read_by_decode(tree)
    if not (trail.hops and allocating):
        missing = "no decode server reads it" if trail.hops else trail.missing
        return _lacks_it(missing, trail.evidence or _arguments_of(tree))
    refusals = refusals_beside(tree, FLAG)
    return Native(
        "decode servers can keep prefixes",
        (*trail.hops[:1], *allocating, *map(_as_evidence, refusals)),
    )


def _read_by_decode(tree: Tree) -> tuple[Evidence, ...]:
    """The first branch of a decode server's code that the flag decides."""
    for module in tree.containing(FLAG, *_DECODE):
        for node in ast.walk(module.syntax):
            if isinstance(node, ast.If) and _mentions_flag(node.test):
                what = f"{module.qualname(node)} branches on {FLAG}"
                return (module.evidence(node, what),)
    return ()


def _mentions_flag(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Attribute) and part.attr == FLAG for part in ast.walk(node))


def _as_evidence(refusal) -> Evidence:
    path, _, line = refusal.where.rpartition(":")
    if refusal.allowed is not None:
        taken = f"takes {', '.join(map(str, refusal.allowed))} only"
    else:
        taken = "is refused" + ("" if refusal.refused == (True,) else f" as {refusal.refused[0]}")
    return Evidence(path, int(line), f"beside it, {refusal.argument} {taken}")


def _arguments_of(tree: Tree) -> tuple[Evidence, ...]:
    found = tree.find(_ARGUMENTS)
    if found is None:
        return (absent(_ARGUMENTS),)
    module, definition = found
    return (module.evidence(definition, f"{definition.name} has no {FLAG}"),)


def _lacks_it(missing: str, evidence: tuple[Evidence, ...]) -> Unsupported:
    return Unsupported(
        f"decode servers keep no prefixes: {missing}",
        f"Use an SGLang tree with {FLAG}; {FIRST_RELEASE} is the first release that has it.",
        evidence,
        target=f"ServerArgs.{FLAG}",
        expected="a declared field that decides what a decode server allocates",
        found=missing,
    )


def miles(tree: Tree) -> Decision:
    """Inject where Miles builds each server's arguments by its role and leaves the cache off."""
    start, config = tree.find(_START), tree.find(_CONFIG)
    if start is None or config is None:
        missing = _CONFIG if start else _START
        return _other_start(missing, (absent(missing),), "no such definition")
    module, definition = start
    names = [a.arg for a in definition.args.args] if isinstance(definition, ast.FunctionDef) else []
    if "worker_type" not in names:
        seen = (module.evidence(definition, definition.name),)
        return _other_start(_START, seen, f"parameters ({', '.join(names)})")
    own = list(key_writes(definition, FLAG))
    if own:
        return Native(
            "Miles switches the cache on for decode servers",
            (module.evidence(own[0], f"{definition.name} sets {FLAG}"),),
        )
    return Inject(
        "Miles builds each server's arguments by its role, and sets no decode cache",
        (
            module.evidence(definition, f"{definition.name}(worker_type)"),
            config[0].evidence(config[1], "SglangConfig groups servers by role"),
        ),
        binding_names(SLUG, "miles", tree),
    )


def _other_start(target: str, evidence: tuple[Evidence, ...], found: str) -> Unsupported:
    return unknown(
        SLUG,
        "Miles does not build its servers' arguments where we know it",
        use="miles-rl 0.0.2 or a Miles of the known shapes",
        target=target,
        expected="a function that builds one server's arguments from its worker_type",
        found=found,
        evidence=evidence,
    )
