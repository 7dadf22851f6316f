"""Megatron's local layer spec, where Miles knows Transformer Engine's only.

Miles names parameters for the weight update as Transformer Engine's spec does: grouped experts
(`experts.linear_fc1.weight3`) and an input norm fused into the first projection
(`linear_qkv.layer_norm_weight`). Transformer Engine needs a GPU; the local spec has one module per
expert (`experts.local_experts.3.linear_fc1.weight`) and a norm of its own
(`input_layernorm.weight`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from miles_periodic.compat.cpu.stand_in import StandIn, replace

LOCAL_EXPERT = re.compile(r"experts\.local_experts\.(\d+)\.(linear_fc[12])\.weight")
INPUT_NORM = ".input_layernorm.weight"
FUSED_INPUT_NORM = ".self_attention.linear_qkv.layer_norm_weight"


def grouped_name(name: str, first_expert: int) -> str:
    """A parameter name of the local spec in Transformer Engine's words.

    first_expert: the global number of this rank's expert 0.
    """

    def number(match: re.Match[str]) -> str:
        return f"experts.{match[2]}.weight{int(match[1]) + first_expert}"

    return LOCAL_EXPERT.sub(number, name).replace(INPUT_NORM, FUSED_INPUT_NORM)


def first_expert_of_rank(num_experts: int) -> int:
    """The global number of this rank's expert 0 under expert parallelism."""
    from miles.backends.training_utils.parallel import get_parallel_state

    experts = get_parallel_state().ep
    return experts.rank * num_experts // experts.size


def names_for_the_weight_update(common: ModuleType) -> None:
    """Name the local spec's parameters as Miles's converters expect them.

    Symptom: "Unknown parameter name: …local_experts…" in the first weight update. Trigger:
    miles/backends/megatron_utils/update_weight/common.py:230 and megatron_to_hf/qwen3moe.py:26.
    Safe: a one-to-one renaming where the expert offset of a rank belongs (renaming later, in the
    converter, swaps experts under expert parallelism); --check-weight-update-equal proves it.
    """

    def make(native: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def named(args: Any, model: Any) -> Iterator[tuple[str, Any]]:
            first = first_expert_of_rank(args.num_experts)
            for name, parameter in native(args, model):
                yield grouped_name(name, first), parameter

        return named

    replace(common, "_named_params_and_buffers_global", make)


def no_transformer_engine_gemm(moe_utils: ModuleType) -> None:
    """Tell the router that Transformer Engine's matrix product is not there.

    Symptom: "name 'te_general_gemm' is not defined" in the first MoE layer. Trigger:
    megatron/core/transformer/moe/moe_utils.py:1244 asks whether a name is None that its import
    block (line 36) leaves unbound without Transformer Engine. Safe: None is the case the same line
    has a branch for. The name is bound here because its absence is the fault.
    """
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None


STAND_INS = (
    StandIn(
        name="local-spec/parameter-names",
        module="miles.backends.megatron_utils.update_weight.common",
        apply=names_for_the_weight_update,
        why="The weight update knows the parameter names of the Transformer Engine spec only.",
        process="trainer",
    ),
    StandIn(
        name="local-spec/router-product",
        module="megatron.core.transformer.moe.moe_utils",
        apply=no_transformer_engine_gemm,
        why="Megatron's router reads a name that exists only with Transformer Engine.",
        process="trainer",
    ),
)
