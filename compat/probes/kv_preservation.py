"""In-place pause, salts from the request to the radix key, and weight updates without a flush."""

from __future__ import annotations

import ast

from miles_periodic.compat.catalog import binding_names
from miles_periodic.compat.follow import follow
from miles_periodic.compat.probes.sightings import absent, calls, comparisons, key_writes, mentions
from miles_periodic.compat.tree import SourceModule, Tree
from miles_periodic.hooks.decisions import Decision, Evidence, Inject, Native, Unsupported

SLUG = "kv-preservation"
_PAUSE = "sglang.srt.managers.io_struct:PauseGenerationReqInput"
_SALT = "extra_key"
_SERVER = ("srt/managers", "srt/mem_cache")
_SIDE_PATHS = ("srt/managers/session_controller.py",)
_PAYLOAD = "miles.rollout.generate_utils.generate_endpoint_utils:compute_request_payload"
_UPDATERS = "backends/megatron_utils/update_weight"
_PREPARE = "_pause_and_prepare_engines"


def sglang(tree: Tree) -> Decision:
    """Native where a pause can leave the cache alone and a salt reaches the cache's key."""
    pause = _in_place_pause(tree)
    if isinstance(pause, Unsupported):
        return pause
    salt = follow(tree, "GenerateReqInput", _SALT, _SERVER, without=_SIDE_PATHS, through="RadixKey")
    if salt.consumer:
        reason = "in_place is handled, and extra_key becomes part of the radix key"
        return Native(reason, salt.evidence + pause)
    return Unsupported(
        f"{_SALT} never becomes part of the radix key: {salt.missing}",
        f"Use an SGLang tree that hands {_SALT} on to Req; 0.5.11 is the first release that does.",
        salt.evidence + pause,
        target=salt.name,
        expected="the request's salt reaches RadixKey",
        found=salt.missing,
    )


def _in_place_pause(tree: Tree) -> tuple[Evidence, ...] | Unsupported:
    """Where the pause mode is declared, where it is told apart, and where the loop stands still."""
    found = tree.find(_PAUSE)
    declared = found and mentions(found[1], "in_place")
    handled = _first_comparison(tree) if declared else None
    standing = _standing_still(tree) if handled else None
    if found and handled and standing:
        module, definition = found
        return (
            module.evidence(definition, "PauseGenerationReqInput knows the mode in_place"),
            handled,
            standing,
        )
    missing = "nothing tells in_place apart" if declared else "no pause mode in_place is declared"
    if handled:
        missing = "no event loop stands still while the engine is paused"
    return Unsupported(
        f"generation cannot be paused in place: {missing}",
        "Use an SGLang tree with the pause mode in_place; 0.5.11 is a release that has it.",
        (found[0].evidence(found[1], "PauseGenerationReqInput"),) if found else (absent(_PAUSE),),
        target=_PAUSE,
        expected="the mode in_place, declared and handled by the scheduler",
        found=missing,
    )


def _first_comparison(tree: Tree) -> Evidence | None:
    for module in tree.containing("in_place", "srt/managers"):
        for compare in comparisons(module.syntax, "mode", "in_place"):
            what = f"{module.qualname(compare)} handles {ast.unparse(compare)}"
            return module.evidence(compare, what)
    return None


def _standing_still(tree: Tree) -> Evidence | None:
    """The event loop's `if self._engine_paused`, by whatever attribute `pause_generation` sets."""
    for module in tree.containing("def pause_generation", "srt/managers"):
        for flag in _flags_set(module):
            for node in ast.walk(module.syntax):
                if isinstance(node, ast.If) and ast.unparse(node.test) == f"self.{flag}":
                    what = f"{module.qualname(node)} waits while {flag}"
                    return module.evidence(node, what)
    return None


def _flags_set(module: SourceModule) -> list[str]:
    """Attributes that the scheduler's `pause_generation` sets to True."""
    statements = [
        node
        for function in module.functions
        if function.name == "pause_generation"
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and ast.unparse(node.value) == "True"
    ]
    return [t.attr for s in statements for t in s.targets if isinstance(t, ast.Attribute)]


def miles(tree: Tree) -> Decision:
    """Inject where the updater leaves the cache alone in place, and nobody salts requests."""
    updater = _updater_without_flush(tree)
    if isinstance(updater, Unsupported):
        return updater
    found = tree.find(_PAYLOAD)
    if found is None:
        return _unsupported(
            "the client of /generate is not where we know it",
            "Use miles-rl 0.0.2, or take the feature out with -kv-preservation.",
            (absent(_PAYLOAD), *updater),
            (_PAYLOAD, "the function that builds a request for /generate", "no such function"),
        )
    module, payload = found
    salted = list(key_writes(payload, _SALT))
    if salted:
        return _salts_itself(module, payload, salted[0], updater)
    evidence = (
        module.evidence(payload, f"compute_request_payload sets no {_SALT}"),
        *_salts_elsewhere(tree),
        *updater,
        *_flushing_updaters(tree),
    )
    reason = "weight updates can leave the cache alone, but no request is salted by its version"
    return Inject(reason, evidence, binding_names(SLUG, "miles", tree))


def _updater_without_flush(tree: Tree) -> tuple[Evidence, ...] | Unsupported:
    """The branch in which the distributed updater flushes unless the mode is in_place."""
    modules = [
        (module, function)
        for module in tree.containing(_PREPARE, _UPDATERS)
        for function in module.functions
        if function.name == _PREPARE and any(calls(function, "flush_cache"))
    ]
    for module, function in modules:
        guards = [n for n in ast.walk(function) if isinstance(n, ast.If) and _guards(n)]
        if guards:
            what = f"{module.qualname(function)} flushes only if {ast.unparse(guards[0].test)}"
            return (module.evidence(guards[0], what),)
    places = tuple(m.evidence(f, f"{m.qualname(f)} flushes in every mode") for m, f in modules)
    return _unsupported(
        "every weight update flushes the servers' caches, also in place",
        "Use a Miles tree whose updater skips flush_cache for --pause-generation-mode in_place.",
        places or (Evidence(f"miles/{_UPDATERS}", 0, f"{_PREPARE} is not there"),),
        (_PREPARE, "flush_cache only when the mode is not in_place", "no such branch"),
    )


def _guards(node: ast.If) -> bool:
    """Whether a branch is taken unless the mode is in_place, and flushes."""
    test = node.test
    negative = isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotIn | ast.NotEq)
    flushes = any(any(calls(statement, "flush_cache")) for statement in node.body)
    return negative and mentions(test, "in_place") and flushes


def _flushing_updaters(tree: Tree) -> tuple[Evidence, ...]:
    """Where else servers are flushed: by other updaters, which are bound, and for offloading."""
    return tuple(
        module.evidence(call, f"{module.qualname(call)} flushes in every mode: bound, or refused")
        for module in tree.containing("flush_cache", "backends")
        for call in calls(module.syntax, "flush_cache")
        if not any(_guards(above) for above in _branches_around(module, call))
    )


def _branches_around(module: SourceModule, node: ast.AST) -> list[ast.If]:
    found, above = [], module.enclosing(node, ast.If)
    while isinstance(above, ast.If):
        found.append(above)
        above = module.enclosing(above, ast.If)
    return found


def _salts_elsewhere(tree: Tree) -> tuple[Evidence, ...]:
    return tuple(
        module.evidence(write, f"{module.qualname(write)} sets {_SALT} to something else")
        for module in tree.containing(_SALT, "rollout")
        for write in key_writes(module.syntax, _SALT)
    )


def _salts_itself(
    module: SourceModule, payload: ast.AST, write: ast.AST, updater: tuple[Evidence, ...]
) -> Decision:
    evidence = (module.evidence(write, f"compute_request_payload sets {_SALT}"), *updater)
    if "weight_version" in ast.unparse(payload):
        return Native("Miles salts requests by their weight version", evidence)
    return _unsupported(
        f"Miles sets {_SALT} to something else than the weight version",
        "Take the feature out with -kv-preservation, or Miles's own use of extra_key.",
        evidence,
        (_PAYLOAD, f"{_SALT} unset, or set from the weight version", ast.unparse(write)),
    )


def _unsupported(
    reason: str, remedy: str, evidence: tuple[Evidence, ...], about: tuple[str, str, str]
) -> Unsupported:
    target, expected, found = about
    return Unsupported(reason, remedy, evidence, target, expected, found)
