"""How much of its shard a rank copies to the host before a synchronous save writes it."""

from __future__ import annotations

import ast

from miles_periodic.compat.catalog import binding_names
from miles_periodic.compat.probes.sightings import absent, calls, imports
from miles_periodic.compat.probes.unknown import unknown
from miles_periodic.compat.tree import Definition, SourceModule, Tree
from miles_periodic.hooks.decisions import Decision, Evidence, Inject, Native, Unsupported

SLUG = "chunked-checkpoint-staging"
_STRATEGIES = "megatron.core.dist_checkpointing.strategies"
_STRATEGY = f"{_STRATEGIES}.torch:TorchDistSaveShardedStrategy"
_BASE_SAVE = f"{_STRATEGIES}.base:AsyncSaveShardedStrategy.save"
_EXECUTE = f"{_STRATEGIES}.async_utils:AsyncRequest.execute_sync"
_WRITER = f"{_STRATEGIES}.filesystem_async:FileSystemWriterAsync"
_HAND_OUT = f"{_WRITER}.get_save_function_and_args"
_TRAINING = "megatron.training.checkpointing:save_checkpoint"
_MILES_SAVE = "miles.backends.megatron_utils.model:save"
_MILES_CHECKPOINT = "miles.backends.megatron_utils.checkpoint"
#: The parameter of radixark/Megatron-LM#61, which stages a few buckets at a time.
_NATIVE = "staging_max_buckets"

Found = tuple[SourceModule, Definition]


def megatron(tree: Tree) -> Decision:
    """Inject where a synchronous save preloads all buckets; native where it does a few at once."""
    needed = {_EXECUTE: tree.find(_EXECUTE), _HAND_OUT: tree.find(_HAND_OUT)}
    needed[f"{_STRATEGY}.save"] = save = tree.find(f"{_STRATEGY}.save") or tree.find(_BASE_SAVE)
    missing = next((target for target, found in needed.items() if found is None), None)
    if missing or save is None:
        missing = missing or _BASE_SAVE
        return _other_save(missing, (absent(missing),), "no such definition")
    strategy = _strategy_of(tree, save)
    if strategy not in ("", "mcore"):
        return _other_writer(strategy, _shown(save, "async_save"))
    native = _native(tree)
    if native:
        return Native(
            "the writer stages a few buckets at a time where it is told how many "
            "(--ckpt-save-staging-buckets)",
            native,
        )
    steps = (
        *_callers(tree),
        *_shown(save, "async_save"),
        *_shown(save, "execute_sync"),
        *_shown(needed[_EXECUTE], "preload_fn"),
        *_whole(needed[_HAND_OUT]),
    )
    if len(steps) < 4 or not _whole(needed[_HAND_OUT]):
        return _other_save(_HAND_OUT, steps, "no preload of all buckets")
    return Inject(
        "a synchronous save copies a rank's whole shard to the host before it writes",
        steps,
        binding_names(SLUG, "megatron", tree),
    )


def _strategy_of(tree: Tree, save: Found) -> str:
    """The name of the writer's implementation that a synchronous save asks for, or empty."""
    for call in calls(save[1], "async_save"):
        for keyword in call.keywords:
            if keyword.arg == "async_strategy" and isinstance(keyword.value, ast.Constant):
                return str(keyword.value.value)
    prepared = tree.find(f"{_STRATEGY}.async_save")
    arguments = prepared[1].args if prepared and isinstance(prepared[1], ast.FunctionDef) else None
    names = [a.arg for a in arguments.args] if arguments else []
    if arguments is None or "async_strategy" not in names:
        return ""
    default = dict(zip(names[::-1], arguments.defaults[::-1], strict=False)).get("async_strategy")
    return str(default.value) if isinstance(default, ast.Constant) else "given by the caller"


def _shown(found: Found | None, callee: str) -> tuple[Evidence, ...]:
    """The first call of `callee` in a definition, as it is written."""
    if found is None:
        return ()
    module, definition = found
    for call in calls(definition, callee):
        what = f"{module.qualname(call)} calls {ast.unparse(call)}"
        return (module.evidence(call, what),)
    return ()


def _whole(found: Found | None) -> tuple[Evidence, ...]:
    """Where the writer hands out a function that preloads all of its buckets."""
    if found is None:
        return ()
    module, definition = found
    for call in calls(definition, "partial"):
        if "preload_tensors" in ast.unparse(call.args[0]):
            what = f"{module.qualname(call)} preloads {ast.unparse(call.args[1])}, all of them"
            return (module.evidence(call, what),)
    return ()


def _native(tree: Tree) -> tuple[Evidence, ...]:
    """Where the writer is told a number of buckets, and what it does by it."""
    declared, writer = tree.find(f"{_WRITER}.__init__"), tree.find(_WRITER)
    if declared is None or writer is None or not isinstance(declared[1], ast.FunctionDef):
        return ()
    if _NATIVE not in [a.arg for a in (*declared[1].args.args, *declared[1].args.kwonlyargs)]:
        return ()
    module, definition = writer
    for node in ast.walk(definition):
        is_read = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        if is_read and node.attr == _NATIVE:
            what = f"{module.qualname(node)} reads {_NATIVE}"
            return (
                module.evidence(declared[1], f"__init__({_NATIVE})"),
                module.evidence(node, what),
            )
    return ()


def _callers(tree: Tree) -> tuple[Evidence, ...]:
    """Where Megatron's training code saves, in trees that ship it."""
    found = tree.find(_TRAINING)
    if found is None:
        return ()
    module, definition = found
    for call in calls(definition, "save"):
        if "async_sharded_save" in ast.unparse(call):
            what = f"{definition.name} calls {ast.unparse(call.func)}(async_sharded_save=)"
            return (module.evidence(call, what),)
    return ()


def _other_writer(strategy: str, evidence: tuple[Evidence, ...]) -> Unsupported:
    return Unsupported(
        f"a synchronous save is written by {strategy}, which is outside Megatron-core",
        f"Use a Megatron-core whose synchronous saves ask for mcore, as 0.17.1 to 0.19.2 do, or "
        f"take the feature out with -{SLUG}.",
        evidence,
        target=f"{_STRATEGY}.save",
        expected="Megatron-core's own writer",
        found=strategy,
    )


def _other_save(target: str, evidence: tuple[Evidence, ...], found: str) -> Unsupported:
    return unknown(
        SLUG,
        "Megatron-core does not save torch_dist checkpoints as we know it",
        use="megatron-core 0.15.3 to 0.19.2 or miles-rl 0.0.2",
        target=target,
        expected="a synchronous save that executes an asynchronous one and preloads its buckets",
        found=found,
        evidence=evidence,
    )


def miles(tree: Tree) -> Decision:
    """Inject, for the command line alone, where Miles saves through Megatron's save_checkpoint."""
    save, checkpoint = tree.find(_MILES_SAVE), tree.module(_MILES_CHECKPOINT)
    if save is None or checkpoint is None:
        missing = _MILES_CHECKPOINT if save else _MILES_SAVE
        return _other_miles(missing, (absent(missing),), "no such definition")
    imported = [
        checkpoint.evidence(node, f"save_checkpoint is that of {node.module}")
        for node, name in imports(checkpoint.syntax, "megatron.training.checkpointing")
        if name == "save_checkpoint"
    ]
    called = [
        save[0].evidence(call, f"save calls {ast.unparse(call.func)}")
        for call in calls(save[1], "save_checkpoint")
    ]
    if not imported or not called:
        return _other_miles(_MILES_SAVE, tuple(called), "no call of Megatron's save_checkpoint")
    return Inject(
        "Miles saves through Megatron's save_checkpoint; its command line is checked",
        (called[0], imported[0]),
        binding_names(SLUG, "miles", tree),
    )


def _other_miles(target: str, evidence: tuple[Evidence, ...], found: str) -> Unsupported:
    return unknown(
        SLUG,
        "Miles does not save its trainers as we know it",
        use="miles-rl 0.0.2",
        target=target,
        expected="a save that calls Megatron's save_checkpoint",
        found=found,
        evidence=evidence,
    )
