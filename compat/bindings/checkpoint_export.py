"""Miles's export to Hugging Face's form, made from the checkpoint that was just saved."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from miles_periodic.compat.bindings.features import manager
from miles_periodic.hooks.errors import PeriodicError

#: What a newer Miles leaves in a whole export, and where it says so.
_MARKER = "HF_EXPORT_COMPLETE_MARKER"


def export(wrapped, instance, args, kwargs):
    """Symptom: with `--save-hf` every rank gathers the model, layer by layer, and a failure is
    logged while what it left looks like a model.

    Trigger: a trainer's save. Takes down: the run, in every rank, where a feature says so; else
    nothing. Safe because the checkpoint holds what the ranks hold: Miles saves and exports in one
    go, and an asynchronous save is waited for first. An export to another path is of weights that
    no checkpoint holds, and stays Miles's own.
    Upstream: miles#1371 converts in the same way, as a script outside the package.
    """
    call = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    if call.get("path") is not None:
        return wrapped(*args, **kwargs)
    if call["args"].async_save:
        _finish_save()
    outcome = _told_by_first_rank(lambda: _exported(wrapped, call["args"], call["rollout_id"]))
    if isinstance(outcome, str):
        raise PeriodicError(
            "The checkpoint that was saved cannot be exported.",
            target="--save-hf",
            found=outcome,
            remedy="Do what that error says. The checkpoint is there: `miles reshard` converts "
            "it, and the run goes on from it.",
        )
    return wrapped(*args, **kwargs) if outcome is None else None


def _finish_save() -> None:
    from megatron.training.async_utils import maybe_finalize_async_save

    maybe_finalize_async_save(blocking=True)


def _told_by_first_rank(work: Any) -> bool | str | None:
    """What `work` gives in rank 0, or its error's words: nobody waits for a rank that fails."""
    import torch.distributed as dist
    from miles.utils.distributed_utils import get_gloo_group

    group = get_gloo_group()
    told: list[bool | str | None] = [None]
    if dist.get_rank() == 0:
        try:
            told = [work()]
        except Exception as error:
            told = [str(error) or repr(error)]
    dist.broadcast_object_list(told, src=0, group=group)
    return told[0]


def _exported(wrapped: Any, arguments: Any, rollout_id: int) -> bool | None:
    target = Path(arguments.save_hf.format(rollout_id=rollout_id))
    done = manager().hook.export_checkpoint(
        checkpoint=str(Path(arguments.save) / f"iter_{rollout_id:07d}"),
        target=str(target),
        arguments=vars(arguments),
    )
    marker = inspect.unwrap(wrapped).__globals__.get(_MARKER)
    if done and marker:
        (target / marker).touch()
    return done
