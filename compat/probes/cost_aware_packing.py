"""Who splits a batch over ranks, who builds micro-batches, and who iterates over them."""

from __future__ import annotations

import ast

from miles_periodic.compat.catalog import binding_names
from miles_periodic.compat.probes.sightings import absent, calls
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.decisions import Decision, Evidence, Inject, Native, Unsupported

SLUG = "cost-aware-packing"
_SPLIT = "miles.ray.rollout:RolloutManager._split_train_data_by_dp"
_ITERATOR = "miles.backends.training_utils.data:get_data_iterator"
_SCHEDULE = "miles.utils.dp_schedule:build_dp_schedule"
_BALANCED = "get_seqlen_balanced_partitions"
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
    return Native(
        "the schedules run the micro-batches that Miles hands them, in Miles's order",
        (
            chooser[0].evidence(chooser[1], "get_forward_backward_func chooses the schedule"),
            module.evidence(definition, f"{definition.name}(data_iterator, num_microbatches)"),
            module.evidence(counts[0], f"{definition.name} loops over {ast.unparse(counts[0])}"),
        ),
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
    """Inject where the rollout manager splits by stride or by token count."""
    schedule = tree.find(_SCHEDULE)
    if schedule is not None:
        return _scheduled(tree, schedule[0].evidence(schedule[1], "build_dp_schedule"))
    split, iterator = tree.find(_SPLIT), tree.find(_ITERATOR)
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


def _scheduled(tree: Tree, evidence: Evidence) -> Unsupported:
    callers = tuple(
        module.evidence(call, f"{module.qualname(call)} takes the schedule")
        for module in tree.containing("build_dp_schedule", "ray")
        for call in calls(module.syntax, "build_dp_schedule")
    )
    return Unsupported(
        "this Miles plans ranks and micro-batches in build_dp_schedule, a seam that follows",
        "Use miles-rl 0.0.2 until the binding for build_dp_schedule is there, or this Miles's own "
        "--balance-by-flops with -cost-aware-packing.",
        (evidence, *callers),
        target=_SCHEDULE,
        expected=_SPLIT,
        found="build_dp_schedule",
    )


def _unknown(target: str, evidence: tuple[Evidence, ...], found: str) -> Unsupported:
    return Unsupported(
        "Miles's split of a batch is not as we know it",
        "Use miles-rl 0.0.2, or take the feature out with -cost-aware-packing.",
        evidence,
        target=target,
        expected="the split of miles-rl 0.0.2",
        found=found,
    )
