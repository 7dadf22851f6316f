"""Who splits a batch over ranks, who builds micro-batches, and who iterates over them."""

from __future__ import annotations

import ast

from miles_periodic.compat.catalog import binding_names
from miles_periodic.compat.probes.sightings import absent, calls, mentions
from miles_periodic.compat.probes.unknown import unknown
from miles_periodic.compat.tree import SourceModule, Tree
from miles_periodic.hooks.decisions import Decision, Evidence, Inject, Native, Unsupported

SLUG = "cost-aware-packing"
_SPLIT = "miles.ray.rollout:RolloutManager._split_train_data_by_dp"
_ITERATOR = "miles.backends.training_utils.data:get_data_iterator"
_SCHEDULE = "miles.utils.dp_schedule:build_dp_schedule"
_FIRST_FIT = "first_fit_decreasing_pack"
_MICRO_BATCHES = "micro_batch_indices"
_BALANCED = "get_seqlen_balanced_partitions"
_WRAP = "wrap_data_iterator"
_PACKER_NAME = "DpBalancedScheduler"
_PACKER = f"megatron.core.datasets.data_schedule:{_PACKER_NAME}"
_HYBRID_NAME = "BalancedCPScheduler"
_HYBRID = f"megatron.core.pipeline_parallel.hybrid_cp_schedule:{_HYBRID_NAME}"
_PIPELINE = "megatron.core.pipeline_parallel.schedules"
_CHOOSER = f"{_PIPELINE}:get_forward_backward_func"
_LOOP = f"{_PIPELINE}:forward_backward_no_pipelining"


def megatron(tree: Tree) -> Decision:
    """Native where the schedule runs as many micro-batches, in that order, as it is handed."""
    chooser, loop = tree.find(_CHOOSER), tree.find(_LOOP)
    if loop is None or chooser is None:
        return _other_schedule(absent(_LOOP if chooser else _CHOOSER), "no such function")
    module, definition = loop
    arguments = definition.args if isinstance(definition, ast.FunctionDef) else ast.arguments()
    names = [a.arg for a in (*arguments.args, *arguments.kwonlyargs)]
    counts = [c for c in calls(definition, "range") if "num_microbatches" in ast.unparse(c)]
    if not {"data_iterator", "num_microbatches"} <= set(names) or not counts:
        found = f"parameters ({', '.join(names)})" if counts else "no loop over num_microbatches"
        return _other_schedule(module.evidence(definition, definition.name), found)
    reason, schedulers = _own_schedulers(tree)
    return Native(
        f"the schedules run the micro-batches that Miles hands them, in Miles's order{reason}",
        (
            chooser[0].evidence(chooser[1], "get_forward_backward_func chooses the schedule"),
            module.evidence(definition, f"{definition.name}(data_iterator, num_microbatches)"),
            module.evidence(counts[0], f"{definition.name} loops over {ast.unparse(counts[0])}"),
            *schedulers,
        ),
    )


def _own_schedulers(tree: Tree) -> tuple[str, tuple[Evidence, ...]]:
    """What the tree's own packing schedulers do, as the end of a reason, with evidence."""
    found = tree.find(_PACKER)
    if found is not None:
        packer = found[0].evidence(found[1], f"{_PACKER_NAME} fills in the order of the samples")
        callers = _callers(tree, _WRAP, besides=found[0])
        if callers:
            return f"; {_PACKER_NAME} packs for Megatron's own training loop", (packer, *callers)
        inert = found[0].evidence(found[1], f"nothing calls {_WRAP}, which alone would run it")
        return f"; {_PACKER_NAME} is inert", (packer, inert)
    hybrid = tree.find(_HYBRID)
    if hybrid is None:
        return "; it has no packing scheduler of its own", ()
    evidence = hybrid[0].evidence(hybrid[1], f"{_HYBRID_NAME} chooses context-parallel sizes")
    reason = f"; {_HYBRID_NAME} serves --hybrid-context-parallel alone, which Miles does not use"
    return reason, (evidence, *_callers(tree, _HYBRID_NAME, besides=hybrid[0]))


def _callers(tree: Tree, name: str, *, besides: SourceModule) -> tuple[Evidence, ...]:
    return tuple(
        module.evidence(call, f"{module.qualname(call)} calls {name}")
        for module in tree.containing(name)
        if module.path != besides.path
        for call in calls(module.syntax, name)
    )


def _other_schedule(evidence: Evidence, found: str) -> Unsupported:
    return Unsupported(
        "the schedule does not take Miles's micro-batches as they are",
        "Use a Megatron-core tree whose schedules take data_iterator and num_microbatches; "
        "0.16.1 and 0.19.2 do.",
        (evidence,),
        target=_LOOP,
        expected="a loop over num_microbatches that takes data_iterator",
        found=found,
    )


def miles(tree: Tree) -> Decision:
    """Inject where the rollout manager splits or plans by stride, token count or bare FLOPs."""
    schedule, iterator = tree.find(_SCHEDULE), tree.find(_ITERATOR)
    if schedule is not None:
        return _planned_on_rollout_side(tree, *schedule, iterator)
    split = tree.find(_SPLIT)
    if split is None or iterator is None:
        missing = _ITERATOR if split else _SPLIT
        return _unknown(missing, (absent(missing),), "no such function")
    module, definition = split
    evidence = [
        module.evidence(node, f"{definition.name} deals samples out by stride: {ast.unparse(node)}")
        for node in calls(definition, "range")
        if len(node.args) == 3
    ][:1]
    for owner, node in (split, iterator):
        evidence += [
            owner.evidence(call, f"{owner.qualname(call)} balances token counts, not cost")
            for call in calls(node, _BALANCED)
        ]
    if not evidence:
        seen = (module.evidence(definition, definition.name),)
        return _unknown(_SPLIT, seen, "neither a stride nor a balance of token counts")
    reason = "Miles splits by stride or token count, and ranks are not aligned slot by slot"
    return Inject(reason, tuple(evidence), binding_names(SLUG, "miles", tree))


def _planned_on_rollout_side(
    tree: Tree,
    module: SourceModule,
    definition: ast.AST,
    iterator: tuple[SourceModule, ast.AST] | None,
) -> Decision:
    """Inject where ranks and micro-batches come from one function and trainers take them."""
    seen = module.evidence(definition, definition.name)
    takers = [
        owner.evidence(call, f"{owner.qualname(call)} takes the schedule")
        for owner in tree.containing(definition.name, "ray")
        for call in calls(owner.syntax, definition.name)
    ]
    if not takers:
        return _unknown(_SCHEDULE, (seen,), "nothing that takes its schedule")
    if iterator is None or not mentions(iterator[1], _MICRO_BATCHES):
        found = f"no use of {_MICRO_BATCHES}"
        last = iterator[0].evidence(iterator[1], found) if iterator else absent(_ITERATOR)
        return _unknown(_ITERATOR, (seen, last), found)
    stock = [
        module.evidence(call, f"{definition.name} packs by tokens, not cost: {ast.unparse(call)}")
        for name in (_FIRST_FIT, _BALANCED)
        for call in calls(definition, name)
    ]
    if not stock:
        return _unknown(_SCHEDULE, (seen,), "neither first fit nor a balance of token counts")
    consumer = iterator[0].evidence(iterator[1], f"get_data_iterator takes {_MICRO_BATCHES}")
    reason = "Miles packs by tokens, or by FLOPs without a cap, and ranks are not aligned"
    return Inject(reason, (*stock, *takers, consumer), binding_names(SLUG, "miles", tree))


def _unknown(target: str, evidence: tuple[Evidence, ...], found: str) -> Unsupported:
    return unknown(
        "cost-aware-packing",
        "Miles's split of a batch is not as we know it",
        use="miles-rl 0.0.2 or the Miles of git main that is known",
        target=target,
        expected="the split of miles-rl 0.0.2, or the schedule of git main",
        found=found,
        evidence=evidence,
    )
