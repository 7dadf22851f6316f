"""Who asks for the routes of new rows only, who serves them, and who replays them."""

from __future__ import annotations

import ast

from miles_periodic.compat.catalog import binding_names
from miles_periodic.compat.follow import Trail, follow
from miles_periodic.compat.probes.sightings import absent, calls, imports, key_writes
from miles_periodic.compat.probes.unknown import unknown
from miles_periodic.compat.scopes import Scopes
from miles_periodic.compat.tree import SourceModule, Tree
from miles_periodic.hooks.decisions import Decision, Evidence, Inject, Native, Unsupported

SLUG = "delta-router-replay"
FIELD = "routed_experts_start_len"
_SERVER = ("srt/managers", "srt/model_executor", "srt/state_capturer", "srt/layers/moe")
_SIDE_PATHS = ("srt/managers/session_controller.py",)
_SETTINGS = ("srt/server_args.py", "srt/arg_groups")
_SWITCH = "enable_return_routed_experts"
_ALIGN = "server/align-mixed-batches"
_OWN = "server/own-captured-rows"
_FORWARD_END = "sglang.srt.state_capturer.base:BaseTopkCapturer.on_forward_end"
_COPY_STREAM = "copy_stream_ctx"
_PAYLOAD = "miles.rollout.generate_utils.generate_endpoint_utils:compute_request_payload"
_ROUTER = "megatron.core.transformer.moe.router:TopKRouter"
_ROUTING = "megatron.core.transformer.moe.moe_utils:topk_routing_with_score_function"
_REPLAY = "miles.utils.replay_base"
_JOINS = ("concatenate", "concat", "cat", "vstack", "append", "extend")


def sglang(tree: Tree) -> Decision:
    """Native where a request's start row reaches the code that gathers the rows.

    Where rows can get lost or mixed up on the way, the cure of that alone is injected. The
    bindings carry the start where nothing does. Where something carries it half of the way, two
    hands would be on one value: unsupported.
    """
    delta = _followed(tree, FIELD)
    bindings = binding_names(SLUG, "sglang", tree)
    injectable = bool(bindings) and len(delta.hops) == 1
    if not (delta.consumer or injectable):
        return _not_served(delta)
    replay = _full_replay(tree)
    if isinstance(replay, Unsupported):
        return replay
    if not delta.consumer:
        return Inject(f"{FIELD} is declared, but {delta.missing}", delta.evidence, bindings)
    reason, evidence = f"{FIELD} is declared and consumed", delta.evidence + replay
    faults = {_ALIGN: _misaligned(tree), _OWN: _overtaken(tree)}
    found = {name: seen for name, seen in faults.items() if seen}
    if not found:
        return Native(reason, evidence)
    seen = tuple(piece for pieces in found.values() for piece in pieces)
    what = "; ".join(pieces[0].what for pieces in found.values())
    return Inject(f"{reason}, but {what}", evidence + seen, tuple(found))


def _misaligned(tree: Tree) -> tuple[Evidence, ...]:
    """Where routes are listed for the requests that asked, and so read by a wrong position."""
    for module in tree.containing("return_routed_experts", "srt/managers"):
        for branch in ast.walk(module.syntax):
            if isinstance(branch, ast.If) and _skips_silent_requests(branch):
                where = module.qualname(branch)
                what = f"{where} lists routes only of requests that asked for them"
                return (module.evidence(branch, what),)
    return ()


def _skips_silent_requests(branch: ast.If) -> bool:
    """`if req.return_routed_experts: routed_experts.append(…)`, without an else."""
    asked = branch.test
    if not isinstance(asked, ast.Attribute) or asked.attr != "return_routed_experts":
        return False
    of_a_request = isinstance(asked.value, ast.Name) and asked.value.id != "self"
    appends = [call for part in branch.body for call in calls(part, "append")]
    listed = any("routed_experts" in ast.unparse(call.func) for call in appends)
    return of_a_request and listed and not branch.orelse


def _overtaken(tree: Tree) -> tuple[Evidence, ...]:
    """Where a view of captured routes is copied on a stream that the next forward overtakes."""
    captured, scheduler = tree.find(_FORWARD_END), tree.module("sglang.srt.managers.scheduler")
    if captured is None or scheduler is None or any(calls(captured[1], "clone")):
        return ()
    for block in ast.walk(scheduler.syntax):
        apart = isinstance(block, ast.With) and _COPY_STREAM in ast.unparse(block.items[0])
        if apart and any(calls(block, "copy_to_cpu")):
            module, definition = captured
            view = f"{definition.name} hands out a view of the buffer that the next forward writes"
            copied = f"results are copied on {_COPY_STREAM}, beside the next forward"
            return module.evidence(definition, view), scheduler.evidence(block, copied)
    return ()


def _followed(tree: Tree, field: str) -> Trail:
    return follow(tree, "GenerateReqInput", field, _SERVER, without=_SIDE_PATHS)


def _full_replay(tree: Tree) -> tuple[Evidence, ...] | Unsupported:
    """Consumers of the server's switch and of the request's flag: a dead one returns nothing.

    A tree that declares none needs none; that is on record as evidence at line 0.
    """
    owners = Scopes(tree, _SETTINGS).owners(_SWITCH)
    switch = follow(tree, next(iter(owners), "ServerArgs"), _SWITCH, _SETTINGS + _SERVER)
    flag = _followed(tree, "return_routed_experts")
    for trail in (switch, flag):
        if trail.hops and trail.consumer is None:
            return Unsupported(
                f"the server returns no routed experts: {trail.missing}",
                "Use an SGLang tree that returns routed experts; 0.5.9 is a release that does.",
                trail.evidence,
                target=trail.name,
                expected="a declared field that decides whether routes are returned",
                found=trail.missing,
            )
    return tuple(
        trail.consumer or Evidence("sglang/srt", 0, f"{trail.missing}; nothing to switch on")
        for trail in (switch, flag)
    )


def _not_served(delta: Trail) -> Unsupported:
    state = "declared and never consumed" if delta.hops else "not declared"
    return Unsupported(
        f"{FIELD} is {state}: {delta.missing}",
        f"Use an SGLang tree that reads {FIELD}; 0.5.12 is the first release that does.",
        delta.evidence,
        target=delta.name,
        expected="the start row reaches the code that gathers a request's rows",
        found=delta.missing,
    )


def megatron(tree: Tree) -> Decision:
    """Native where the router consults Miles's replay manager, which is what fills the routes."""
    registered = _sighting(tree, _ROUTER, "register_to_module")
    consulted = _sighting(tree, _ROUTING, "get_topk_fn")
    if registered and consulted:
        return Native(
            "the router takes its experts from Miles's replay manager", registered + consulted
        )
    own = _own_replay(tree)
    missing = _ROUTING if registered else _ROUTER
    return Unsupported(
        "the router does not consult Miles's replay manager"
        + ("; it has a replay of its own, which Miles does not drive" if own else ""),
        "Use the Megatron that Miles is built with (miles-rl 0.0.2 ships it), "
        "or take the feature out with -delta-router-replay.",
        registered + consulted + (own or (absent(missing),)),
        target=missing,
        expected=f"a call into routing_replay_manager of {_REPLAY}",
        found=own[0].what if own else "no replay at all",
    )


def _sighting(tree: Tree, target: str, method: str) -> tuple[Evidence, ...]:
    """The import of Miles's manager and the call of `method` on it, in one definition's module."""
    found = tree.find(target)
    if found is None:
        return ()
    module, definition = found
    for statement, name in imports(module.syntax, _REPLAY):
        for call in calls(definition, method):
            if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == name:
                where = f"{module.qualname(call)} calls {name}.{method}"
                return (
                    module.evidence(statement, f"imports {name} from {_REPLAY}"),
                    module.evidence(call, where),
                )
    return ()


def _own_replay(tree: Tree) -> tuple[Evidence, ...]:
    """Megatron's own RouterReplay and the switch that turns it on."""
    found = tree.find("megatron.core.transformer.moe.router_replay:RouterReplay")
    if found is None:
        return ()
    module, definition = found
    evidence = [module.evidence(definition, "RouterReplay, Megatron's own replay, is defined")]
    switch = Scopes(tree, ("core/transformer",)).owners("moe_enable_routing_replay")
    router = tree.module("megatron.core.transformer.moe.router")
    uses = list(calls(router.syntax, "RouterReplay")) if router else []
    if router and uses:
        evidence.append(
            router.evidence(uses[0], f"{router.qualname(uses[0])} makes a RouterReplay")
        )
    return (*evidence, *switch.values())


def miles(tree: Tree) -> Decision:
    """Inject where Miles asks for all rows on `/generate`, native where it asks for new ones."""
    found = tree.find(_PAYLOAD)
    if found is None:
        return _no_client(tree)
    module, payload = found
    asks = list(key_writes(module.syntax, FIELD))
    if asks:
        return _asks(module, asks)
    full = list(key_writes(payload, "return_routed_experts"))
    if not full:
        return Unsupported(
            "requests for /generate never ask for routed experts",
            "Use a Miles tree with --use-rollout-routing-replay.",
            (module.evidence(payload, "compute_request_payload asks for no routed experts"),),
            target=_PAYLOAD,
            expected='the key "return_routed_experts"',
            found="a payload without it",
        )
    reason = f"Miles asks for all rows on every turn: no request on /generate has {FIELD}"
    what = f"compute_request_payload asks for routed experts without {FIELD}"
    evidence = (module.evidence(full[0], what), *_elsewhere(tree))
    bindings = binding_names(SLUG, "miles", tree)
    return Inject(reason, evidence, bindings)


def _asks(module: SourceModule, asks: list[ast.AST]) -> Decision:
    evidence = (module.evidence(asks[0], f"{module.qualname(asks[0])} asks with {FIELD}"),)
    for name in _JOINS:
        for call in calls(module.syntax, name):
            if "routed_experts" in ast.unparse(call):
                joined = module.evidence(
                    call, f"{module.qualname(call)} joins new rows to old ones"
                )
                return Native("Miles asks for new rows only and joins them", (*evidence, joined))
    return Unsupported(
        "Miles asks for new rows only, but nothing joins them to the rows that it holds",
        "Use a Miles tree whose update_sample_from_response appends the rows it receives.",
        evidence,
        target=_PAYLOAD.replace("compute_request_payload", "update_sample_from_response"),
        expected="new rows are appended to sample.rollout_routed_experts",
        found="no concatenation of routed experts in the module",
    )


def _elsewhere(tree: Tree) -> tuple[Evidence, ...]:
    """Paths other than `/generate` on which Miles asks for new rows by itself."""
    return tuple(
        module.evidence(ask, f"{module.qualname(ask)} asks with {FIELD}, outside /generate")
        for module in tree.containing(FIELD, "rollout")
        for ask in key_writes(module.syntax, FIELD)
    )


def _no_client(tree: Tree) -> Unsupported:
    return unknown(
        "delta-router-replay",
        "the client of /generate is not where we know it",
        use="miles-rl 0.0.2",
        target=_PAYLOAD,
        expected="the function that builds a request for /generate",
        found="no such function",
        evidence=(absent(_PAYLOAD), *_elsewhere(tree)),
    )
