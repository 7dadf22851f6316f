"""Whether Megatron streams optimizer state in chunks itself, and who checks Miles's arguments."""

from __future__ import annotations

import ast

from miles_periodic.compat.catalog import binding_names
from miles_periodic.compat.probes.sightings import calls
from miles_periodic.compat.probes.unknown import unknown
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.decisions import Decision, Evidence, Inject, Native

SLUG = "chunked-optimizer-offload"
_FIELD = "chunked_optimizer_state_offload"
_CONFIG = "megatron.core.optimizer.optimizer_config:OptimizerConfig"
_OPTIMIZER = "megatron.core.optimizer.distrib_optimizer:DistributedOptimizer"
_STEP = "megatron.core.optimizer.optimizer:MixedPrecisionOptimizer.step_with_ready_grads"
_UNCHUNKED = "megatron.core.optimizer.cpu_offloading.optimizer_state_offloader"
_ARGUMENTS = "miles.utils.arguments:parse_args"


def megatron(tree: Tree) -> Decision:
    """Native where a chunked offloader is configured and attached, else inject."""
    found = tree.find(_OPTIMIZER)
    if found is None:
        return unknown(
            SLUG,
            "Megatron's distributed optimizer is not where we know it",
            use="megatron-core 0.16.1 to 0.19.2",
            target=_OPTIMIZER,
            expected="the class DistributedOptimizer",
            found="no such class",
        )
    consumed = _consumed(tree)
    if consumed:
        return Native("Megatron offloads optimizer state in chunks itself, by argument", consumed)
    module, optimizer = found
    evidence = [module.evidence(optimizer, f"{optimizer.name} has no {_FIELD}")]
    step = tree.find(_STEP)
    if step:
        evidence += [
            step[0].evidence(call, f"{step[1].name} steps all state at once: {ast.unparse(call)}")
            for call in calls(step[1], "step")
            if ast.unparse(call.func) == "self.optimizer.step"
        ]
    if (unchunked := tree.module(_UNCHUNKED)) is not None:
        offloader = unchunked.syntax.body[0]
        evidence.append(unchunked.evidence(offloader, "OptimizerStateOffloader moves all at once"))
    reason = "the optimizer's whole state is on the device while it steps"
    return Inject(reason, tuple(evidence), binding_names(SLUG, "megatron", tree))


def _consumed(tree: Tree) -> tuple[Evidence, ...]:
    """Where the field is declared, and where the optimizer reads it; empty unless both are."""
    declared, optimizer = tree.find(_CONFIG), tree.find(_OPTIMIZER)
    if declared is None or optimizer is None:
        return ()
    fields = [
        declared[0].evidence(node, f"OptimizerConfig.{_FIELD} is declared")
        for node in declared[1].body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == _FIELD
    ]
    reads = [
        optimizer[0].evidence(node, f"{optimizer[0].qualname(node)} reads config.{_FIELD}")
        for node in ast.walk(optimizer[1])
        if isinstance(node, ast.Attribute) and node.attr == _FIELD
    ]
    return (*fields[:1], *reads[:1]) if fields and reads else ()


def miles(tree: Tree) -> Decision:
    """Inject: what cannot go together is refused, and a native offload switched on, by argument."""
    found = tree.find(_ARGUMENTS)
    if found is None:
        return unknown(
            SLUG,
            "Miles's arguments are not parsed where we know it",
            use="miles-rl 0.0.2 or Miles main",
            target=_ARGUMENTS,
            expected="the function that parses the command line",
            found="no such function",
        )
    module, definition = found
    return Inject(
        "arguments that cannot go together are refused when Miles has parsed them",
        (module.evidence(definition, f"{definition.name} returns Megatron's arguments, too"),),
        binding_names(SLUG, "miles", tree),
    )
