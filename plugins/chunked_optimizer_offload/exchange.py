"""State from a checkpoint, of this or of torch's own kind, copied into host memory.

torch.optim.Optimizer casts what it loads to the parameter's device, which would put all moments on
the GPU at once; so tensors go through it wrapped, and are copied from where they are.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import torch

MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
#: Dtypes whose numbers mean what they say.
_WHOLE = (torch.float32, torch.bfloat16, torch.float64)
#: Flags of a group of torch.optim.AdamW, where a checkpoint of another kind has none.
_FLAGS = {
    "amsgrad": False,
    "maximize": False,
    "foreach": None,
    "capturable": False,
    "differentiable": False,
    "fused": None,
}


class Held:
    """A tensor that torch.optim.Optimizer.load_state_dict passes on as it is."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def hold(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """The same state_dict with every tensor of its state wrapped."""
    state = {key: _held(entry) for key, entry in state_dict["state"].items()}
    return {**state_dict, "state": state}


def _held(entry: Any) -> Any:
    if not isinstance(entry, Mapping):
        return entry
    return {k: Held(v) if isinstance(v, torch.Tensor) else v for k, v in entry.items()}


def released(entry: Any) -> Any:
    """The reverse of `hold`, for one parameter's state."""
    if not isinstance(entry, Mapping):
        return entry
    return {k: v.tensor if isinstance(v, Held) else v for k, v in entry.items()}


def check_state(
    state: Mapping[str, Any], param: torch.Tensor, group: Mapping[str, Any], number: int
) -> None:
    """Raise ValueError where a parameter's loaded state is not one of Adam's for it."""
    wanted = MOMENTS if group.get("amsgrad") else MOMENTS[:2]
    for kind in wanted:
        moment = state.get(kind)
        if not isinstance(moment, torch.Tensor):
            raise ValueError(
                f"the state of parameter {number} has {sorted(map(str, state))}, no {kind}: load "
                "one that Adam wrote with the same amsgrad."
            )
        if moment.shape != param.shape:
            raise ValueError(
                f"{kind} of parameter {number} has shape {tuple(moment.shape)}, the parameter "
                f"{tuple(param.shape)}: load the state of this model and this sharding."
            )
        if moment.dtype not in _WHOLE:
            raise ValueError(
                f"{kind} of parameter {number} is {moment.dtype}, which needs scales that the "
                "state does not carry: load moments of torch.float32 or torch.bfloat16."
            )


def num_steps(state: Mapping[str, Any], group: Mapping[str, Any], number: int) -> float:
    """How often a parameter was stepped: its own counter, or its group's.

    Raises ValueError where there are moments that are not zero, but no counter.
    """
    counter = state.get("step", group.get("step"))
    if counter is not None:
        return float(counter)
    if any(bool(state[kind].any()) for kind in MOMENTS if kind in state):
        raise ValueError(
            f"the state of parameter {number} has moments and no step, neither in it nor in its "
            "group: load a checkpoint that has the counter, or bias correction would start anew."
        )
    return 0.0


def common_num_steps(counts: Sequence[float]) -> int:
    """The one counter of a group. ValueError where its parameters were stepped unequally often."""
    if len(set(counts)) > 1:
        raise ValueError(
            f"parameters of one group were stepped {sorted(set(counts))} times: a rule that counts "
            "in groups cannot hold that. Use torch's AdamW, which counts for each parameter."
        )
    return int(counts[0]) if counts else 0


def complete_groups(
    groups: Sequence[MutableMapping[str, Any]], ours: Sequence[Mapping[str, Any]]
) -> None:
    """Give loaded groups the flags that they do not have, and the way in which ours decay."""
    for group, mine in zip(groups, ours, strict=True):
        for flag, value in _FLAGS.items():
            group.setdefault(flag, value)
        group["decoupled_weight_decay"] = mine.get("decoupled_weight_decay", True)
