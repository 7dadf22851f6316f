"""A Hugging Face folder as the trainer's first weights.

Shape legend: H hidden size, D head size, G query groups, Q query heads per group, F expert width.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

from miles_periodic.compat.cpu.megatron_local_spec import first_expert_of_rank
from miles_periodic.compat.cpu.stand_in import StandIn, replace
from miles_periodic.hooks.errors import PeriodicError

LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
EXPERT = re.compile(r"mlp\.experts\.local_experts\.(\d+)\.(linear_fc[12])\.weight")
OUTSIDE_LAYERS = {
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "decoder.final_layernorm.weight": "model.norm.weight",
    "output_layer.weight": "lm_head.weight",
}
IN_A_LAYER = {
    "input_layernorm.weight": "input_layernorm.weight",
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "mlp.router.weight": "mlp.gate.weight",
}


class HuggingFaceWeights:
    """The tensors of a Qwen3-MoE folder, under the parameter names of Megatron's local spec.

    Tensor and pipeline parallel size 1; `first_expert` is the global number of this rank's
    expert 0.
    """

    def __init__(
        self, tensors: dict[str, Any], *, num_query_groups: int, head_size: int, first_expert: int
    ) -> None:
        self._tensors = tensors
        self._num_query_groups = num_query_groups
        self._head_size = head_size
        self._first_expert = first_expert

    def __getitem__(self, name: str) -> Any:
        """The value of the Megatron parameter `name`; PeriodicError for one it does not know."""
        if name in OUTSIDE_LAYERS:
            return self._tensors[OUTSIDE_LAYERS[name]]
        in_layer = LAYER.fullmatch(name)
        if in_layer is None:
            raise _unknown(name)
        layer, rest = f"model.layers.{in_layer[1]}.", in_layer[2]
        if rest == "self_attention.linear_qkv.weight":
            return self._query_key_value(layer)
        if expert := EXPERT.fullmatch(rest):
            return self._expert(layer, int(expert[1]) + self._first_expert, expert[2])
        if rest not in IN_A_LAYER:
            raise _unknown(name)
        return self._tensors[layer + IN_A_LAYER[rest]]

    def _query_key_value(self, layer: str) -> Any:
        """Query [G*Q*D, H], key and value [G*D, H], interleaved by group: [G*(Q+2)*D, H]."""
        import torch

        parts = [self._tensors[f"{layer}self_attn.{part}_proj.weight"] for part in "qkv"]
        hidden_size = parts[0].shape[1]
        grouped = [
            part.view(self._num_query_groups, -1, self._head_size, hidden_size) for part in parts
        ]
        return torch.cat(grouped, dim=1).reshape(-1, hidden_size)

    def _expert(self, layer: str, expert: int, linear: str) -> Any:
        """linear_fc1 [2*F, H] is gate over up, linear_fc2 [H, F] is down."""
        import torch

        weights = f"{layer}mlp.experts.{expert}."
        if linear == "linear_fc2":
            return self._tensors[f"{weights}down_proj.weight"]
        halves = [self._tensors[f"{weights}{half}_proj.weight"] for half in ("gate", "up")]
        return torch.cat(halves)


def load(ddp_model: Any, optimizer: Any, args: Any, load_path: str) -> tuple[int, int]:
    """Copy the folder's weights into the model; Miles's loader contract: (iteration, flops)."""
    import torch

    weights = HuggingFaceWeights(
        read_tensors(Path(load_path)),
        num_query_groups=args.num_query_groups,
        head_size=args.kv_channels,
        first_expert=first_expert_of_rank(args.num_experts),
    )
    with torch.no_grad():
        for chunk in ddp_model:
            for name, parameter in chunk.named_parameters():
                parameter.copy_(weights[re.sub(r"^(module\.)+", "", name)])
    if optimizer is not None:
        optimizer.reload_model_params()
    return 0, 0


def read_tensors(folder: Path) -> dict[str, Any]:
    """Every tensor of the folder's safetensors files."""
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise PeriodicError(
            "The trainer has no weights to start from.",
            expected=f"safetensors files in {folder}",
            found="none",
            remedy="Write the tiny model with compat.cpu.tiny_model.write, or point --ref-load "
            "at a Hugging Face folder.",
        )
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def _unknown(name: str) -> PeriodicError:
    return PeriodicError(
        "The trainer's model has a parameter that the checkpoint has no place for.",
        target=name,
        expected="a parameter of a Qwen3-MoE model in Megatron's local spec",
        remedy="Give --transformer-impl local and the model flags of compat.cpu.flags, or extend "
        "compat/cpu/load_hugging_face.py.",
    )


def load_without_bridge(checkpoint: ModuleType) -> None:
    """Load Hugging Face weights without `megatron.bridge`.

    Symptom: "Only bridge mode is supported for loading HF checkpoint". Trigger:
    miles/backends/megatron_utils/checkpoint.py:176. Safe: the inverse of Miles's own converter for
    this model; --check-weight-update-equal compares the round trip bit by bit.
    """
    replace(checkpoint, "_load_checkpoint_hf", lambda native: load)


STAND_INS = (
    StandIn(
        name="load-hugging-face/loader",
        module="miles.backends.megatron_utils.checkpoint",
        apply=load_without_bridge,
        why="Miles loads Hugging Face weights through megatron.bridge, which needs a GPU stack.",
        process="trainer",
    ),
)
