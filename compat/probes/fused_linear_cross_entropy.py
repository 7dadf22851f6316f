"""Who makes logits, and who takes the log-probabilities of tokens from them."""

from __future__ import annotations

import ast

from miles_periodic.compat.catalog import BINDINGS, binding_names
from miles_periodic.compat.probes.sightings import absent, calls
from miles_periodic.compat.probes.unknown import unknown
from miles_periodic.compat.tree import Definition, SourceModule, Tree
from miles_periodic.hooks.decisions import Decision, Evidence, Inject, Unsupported

SLUG = "fused-linear-cross-entropy"
_OUTPUT = BINDINGS["loss/output"].target
_LOSSES = tuple(BINDINGS[name].target for name in ("loss/log-probs", "loss/main-log-probs"))
#: The class of trees that have a fused loss of their own, for labels and on Blackwell.
_FUSED = "megatron.core.transformer.linear_cross_entropy:LinearCrossEntropyModule"
_DEVICES = "megatron.core.fusions.fused_linear_cross_entropy"


def megatron(tree: Tree) -> Decision:
    """Inject where GPTModel makes logits for whoever asks without labels."""
    found = tree.find(_OUTPUT)
    if found is None:
        return _unknown(_OUTPUT, (absent(_OUTPUT),), "no such method", "0.16.1 to 0.19.2")
    module, method = found
    made = [call for call in calls(method, "output_layer") if _is_for_the_model(call)]
    if not made:
        seen = (module.evidence(method, f"{method.name} calls no output_layer"),)
        return _unknown(_OUTPUT, seen, "no call of the output layer", "0.16.1 to 0.19.2")
    evidence = [module.evidence(made[0], f"{method.name} makes logits: {ast.unparse(made[0])}")]
    processor = "output_processor" in _parameters(method)
    if processor:
        seen = f"{method.name} takes an output_processor, and has none by itself"
        evidence.append(module.evidence(method, seen))
    evidence += _own_fusion(tree)
    reason = "GPTModel makes logits" + (" where no output_processor is given" if processor else "")
    return Inject(reason, tuple(evidence), binding_names(SLUG, "megatron", tree))


def _is_for_the_model(call: ast.Call) -> bool:
    """Whether it is not a call for multi-token prediction, by what is handed in."""
    return not any("mtp" in ast.unparse(part) for part in (*call.args, *call.keywords))


def _own_fusion(tree: Tree) -> list[Evidence]:
    """Where a tree's own fused loss refuses devices."""
    fused, devices = tree.find(_FUSED), tree.module(_DEVICES)
    if fused is None or devices is None:
        return []
    refusals = [node for node in ast.walk(devices.syntax) if isinstance(node, ast.Raise)]
    what = "its own fused loss takes labels, not Miles's losses, and refuses what is not Blackwell"
    return [devices.evidence(node, what) for node in refusals[:1]]


def miles(tree: Tree) -> Decision:
    """Inject where one function takes the log-probabilities of responses from logits."""
    places = [(target, tree.find(target)) for target in _LOSSES]
    target, found = next(((t, f) for t, f in places if f), (_LOSSES[0], None))
    if found is None:
        return _unknown(target, (absent(target),), "no such function", "miles-rl 0.0.2")
    module, function = found
    slices = list(calls(function, "get_responses"))
    if "logits" not in _parameters(function) or not slices:
        seen = (module.evidence(function, f"{function.name}({', '.join(_parameters(function))})"),)
        return _unknown(target, seen, "no logits that it slices", "miles-rl 0.0.2")
    return Inject(
        "Miles takes log-probabilities and entropies from logits",
        (
            module.evidence(function, f"{function.name} takes logits"),
            module.evidence(slices[0], f"{function.name} slices them: {ast.unparse(slices[0])}"),
            *_callers(module, function.name),
        ),
        binding_names(SLUG, "miles", tree),
    )


def _callers(module: SourceModule, name: str) -> list[Evidence]:
    return [
        module.evidence(call, f"{module.qualname(call)} asks for them")
        for call in calls(module.syntax, name)
    ]


def _parameters(definition: Definition) -> list[str]:
    if isinstance(definition, ast.ClassDef):
        return []
    arguments = definition.args
    return [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _unknown(target: str, evidence: tuple[Evidence, ...], found: str, known: str) -> Unsupported:
    return unknown(
        SLUG,
        "it makes or takes logits at a place that is not known",
        use=known,
        target=target,
        expected=f"what {known} has there",
        found=found,
        evidence=evidence,
    )
