"""Who makes a model in Hugging Face's form of what a run has trained."""

from __future__ import annotations

from miles_periodic.compat.catalog import binding_names
from miles_periodic.compat.probes.sightings import absent, calls
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.decisions import Decision, Evidence, Inject, Unsupported

SLUG = "fast-resharding"
_ROOM = "miles.backends.megatron_utils"
_EXPORTS = (f"{_ROOM}.model:save_hf_model", f"{_ROOM}.hf_export:save_hf_model")
_SAVE = f"{_ROOM}.actor:MegatronTrainRayActor.save_model"
#: The ways in which Miles gathers a model's tensors from all ranks.
_GATHERS = ("save_hf_pretrained", "export_hf_model_direct")


def miles(tree: Tree) -> Decision:
    """Inject where a trainer saves, then exports by gathering the model from all ranks."""
    export = next(filter(None, map(tree.find, _EXPORTS)), None)
    save = tree.find(_SAVE)
    if export is None or save is None:
        missing = _SAVE if export else _EXPORTS[0]
        return _unknown(missing, (absent(missing),), "no such function")
    saved = next(calls(save[1], "save"), None)
    exported = next(calls(save[1], "save_hf_model"), None)
    gathered = [call for name in _GATHERS for call in calls(export[1], name)]
    if saved is None or exported is None or exported.lineno < saved.lineno:
        seen = (save[0].evidence(save[1], "save_model"),)
        return _unknown(_SAVE, seen, "no export that follows a save")
    if not gathered:
        seen = (export[0].evidence(export[1], "save_hf_model"),)
        return _unknown(_EXPORTS[0], seen, "no gathering that is known")
    return Inject(
        "--save-hf gathers the model from all ranks after each save",
        (
            save[0].evidence(saved, "a trainer saves"),
            save[0].evidence(exported, "and exports what it saved"),
            *(export[0].evidence(call, f"the export calls {_name(call)}") for call in gathered),
        ),
        binding_names(SLUG, "miles", tree),
    )


def _name(call) -> str:
    return getattr(call.func, "attr", None) or call.func.id


def _unknown(target: str, evidence: tuple[Evidence, ...], found: str) -> Unsupported:
    return Unsupported(
        "Miles does not export its trainers as we know it",
        f"Use miles-rl 0.0.2, convert with `miles reshard` after the run, or take the feature out "
        f"with -{SLUG}.",
        evidence,
        target=target,
        expected="a save that is followed by save_hf_model",
        found=found,
    )
