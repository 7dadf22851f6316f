"""Process groups that ask for NCCL, and collectives that gloo takes differently."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from miles_periodic.compat.cpu.stand_in import StandIn, replace

GROUP_FACTORY = "_new_process_group_helper"


def groups_over_gloo(c10d: ModuleType) -> None:
    """Give a gloo group to whoever asks for an NCCL one.

    Symptom: "Distributed package doesn't have NCCL" or a hang in the first weight update.
    Trigger: update_weight_from_distributed/broadcast.py:132 (in
    miles/backends/megatron_utils/update_weight) names "nccl", and SGLang's end of the same group
    follows. One function serves both.
    Safe: gloo has the broadcast that a weight update uses, with the same result.

    The same call fails on any machine with torch 2.10 or newer: miles/utils/distributed_utils.py:77
    compares versions as strings, takes "2.14" for older than "2.6" and passes `pg_options`, a name
    that torch has since changed to `backend_options`.
    """

    def make(native: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(native)

        def new_group(*args: Any, **kwargs: Any) -> Any:
            if "pg_options" in kwargs and "backend_options" in signature.parameters:
                kwargs["backend_options"] = kwargs.pop("pg_options")
            call = signature.bind(*args, **kwargs)
            if str(call.arguments["backend"]) == "nccl":
                call.arguments["backend"] = c10d.Backend("gloo")
                call.arguments.pop("backend_options", None)
            return native(*call.args, **call.kwargs)

        return new_group

    replace(c10d, GROUP_FACTORY, make)


def split_sizes_as_lists(c10d: ModuleType) -> None:
    """Let `all_to_all_single` take its split sizes as tensors.

    Symptom: "incompatible function arguments" in the first MoE layer. Trigger:
    megatron/core/transformer/moe/token_dispatcher.py keeps the splits of the all-to-all dispatcher
    as tensors until a device-to-host copy point that a CPU never reaches. Safe: same numbers.
    """

    def make(native: Callable[..., Any]) -> Callable[..., Any]:
        def all_to_all_single(
            output: Any,
            input: Any,
            output_split_sizes: Any = None,
            input_split_sizes: Any = None,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            outputs, inputs = as_list(output_split_sizes), as_list(input_split_sizes)
            return native(output, input, outputs, inputs, *args, **kwargs)

        return all_to_all_single

    replace(c10d, "all_to_all_single", make)


def as_list(sizes: Any) -> Any:
    """A tensor of sizes as a list; anything else as it is."""
    return sizes.tolist() if hasattr(sizes, "tolist") else sizes


STAND_INS = (
    StandIn(
        name="gloo/process-groups",
        module="torch.distributed.distributed_c10d",
        apply=groups_over_gloo,
        why="Miles's weight update names NCCL, which needs a GPU.",
    ),
    StandIn(
        name="gloo/split-sizes",
        module="torch.distributed.distributed_c10d",
        apply=split_sizes_as_lists,
        why="Megatron passes the split sizes of an all-to-all as tensors, gloo wants lists.",
        process="trainer",
    ),
)
