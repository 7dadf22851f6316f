"""What a command line cannot have besides offloaded optimizer state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from miles_periodic.hooks.conflicts import Conflict, refuse_conflicts
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.chunked_optimizer_offload.settings import SLUG

_NO_QUANTIZED = (
    "quantised weights are made from all masters at once, in a collective, so that they would have "
    "to be on the device together"
)
_NO_GRAPH = "a CUDA graph cannot hold a step whose chunks come from host memory"
_KEEPS_HOST_MEMORY = "its writer would keep host memory that the next step overwrites"
_OWN_PLACE = "it moves the same state to a place of its own"
_READS = "it reads masters where the parameters show placeholders"
_LORA = "adapters are saved and restored around the optimizer's masters"


def _is_whole(graphs: Any) -> bool:
    return "full_iteration" in str(graphs)


def _is_local(kind: Any) -> bool:
    return kind == "local"


CONFLICTS = (
    Conflict("train_backend", "there are no masters of Megatron's", "megatron"),
    Conflict("optimizer", "only Adam is stepped in chunks", "adam"),
    Conflict("use_distributed_optimizer", "masters are those of Megatron's", True),
    Conflict("use_megatron_fsdp", "Megatron-FSDP holds masters of its own"),
    Conflict("use_custom_fsdp", "Megatron-FSDP holds masters of its own"),
    Conflict("use_torch_fsdp2", "FSDP2 holds masters of its own"),
    Conflict("use_layer_wise_distributed_optimizer", "it shards whole layers, not buffers"),
    Conflict("use_precision_aware_optimizer", "the masters are inside its FusedAdam; set "
             f"{SLUG}.moment_dtype for smaller moments"),
    Conflict("optimizer_cpu_offload", _OWN_PLACE),
    Conflict("offload_optimizer_states", _OWN_PLACE),
    Conflict("stream_optimizer_state_to_disk", _OWN_PLACE),
    Conflict("rl_offload_optimizer_during_inference", "it moves placeholders, each in full size"),
    Conflict("optimizer_cuda_graph", _NO_GRAPH),
    Conflict("fp8_param_gather", _NO_QUANTIZED),
    Conflict("fp8_param", _NO_QUANTIZED),
    Conflict("fp4_param_gather", _NO_QUANTIZED),
    Conflict("fp4_param", _NO_QUANTIZED),
    Conflict("reuse_grad_buf_for_mxfp8_param_ag", _NO_QUANTIZED),
    Conflict("qk_clip", "it clips weights in their masters on the device"),
    Conflict("log_params_norm", _READS),
    Conflict("save_local_weight_checksum", _READS),
    Conflict("enable_witness", _READS),
    Conflict("multi_lora", _LORA),
    Conflict("lora_rank", _LORA),
    Conflict("lora_adapter_path", _LORA),
    Conflict("cuda_graph_scope", _NO_GRAPH, is_refused=_is_whole),
    Conflict("cuda_graph_impl", _NO_GRAPH, is_refused=_is_whole),
    Conflict("non_persistent_ckpt_type", _KEEPS_HOST_MEMORY, is_refused=_is_local),
)  # fmt: skip


CONFLICTS_OF_AN_ASYNCHRONOUS_SAVE = (Conflict("async_strategy", _KEEPS_HOST_MEMORY, "mcore"),)

_SHARED = {
    "train_backend",
    "use_megatron_fsdp",
    "use_torch_fsdp2",
    "optimizer_cpu_offload",
    "stream_optimizer_state_to_disk",
    "optimizer_cuda_graph",
    "cuda_graph_scope",
    "cuda_graph_impl",
}
#: The part of them that Megatron's own offload shares. It takes quantised weights, a
#: precision-aware optimizer and Muon, and asserts about them where it builds the optimizer.
NATIVE_CONFLICTS = tuple(conflict for conflict in CONFLICTS if conflict.argument in _SHARED)
NATIVE_CONFLICTS_OF_A_SAVE = (
    Conflict("async_save", _KEEPS_HOST_MEMORY),
    Conflict("ckpt_format", "its checkpoints are sharded ones", "torch_dist"),
)


def refuse_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise PeriodicError naming the first argument that the feature cannot work with."""
    refuse_conflicts(SLUG, CONFLICTS, arguments)
    if arguments.get("async_save"):
        refuse_conflicts(SLUG, CONFLICTS_OF_AN_ASYNCHRONOUS_SAVE, arguments)


def refuse_beside_native(arguments: Mapping[str, Any], moment_dtype: str) -> None:
    """Raise PeriodicError where the tree's own offload cannot have what was set.

    Megatron has checked its arguments by the time that ours are set, so this is said here.
    """
    if moment_dtype != "float32":
        raise PeriodicError(
            "This Megatron offloads by itself, and its moments are not a setting of ours.",
            feature=SLUG,
            target=f"{SLUG}.moment_dtype",
            expected="float32",
            found=moment_dtype,
            remedy=f"Leave {SLUG}.moment_dtype out.",
        )
    refuse_conflicts(SLUG, NATIVE_CONFLICTS, arguments)
    if not arguments.get("no_save_optim"):
        refuse_conflicts(SLUG, NATIVE_CONFLICTS_OF_A_SAVE, arguments)
