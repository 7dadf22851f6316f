"""The sizes of a model that decide its cost, from a Hugging Face config or Megatron's arguments."""

from __future__ import annotations

from dataclasses import dataclass

from miles_periodic.plugins.cost_aware_packing.attention_shape import AttentionShape
from miles_periodic.plugins.cost_aware_packing.config_fields import ConfigFields

_EXPERT_COUNTS = ("n_routed_experts", "num_experts", "num_local_experts", "num_moe_experts")


@dataclass(frozen=True)
class ModelShape:
    """Forward cost of the parts of a model, in FLOPs.

    Attributes:
        attention: that of all layers.
        feed_forward_per_token: feed-forward of all layers (active experts only), per token.
        head_per_token: output layer, per token.
    """

    attention: AttentionShape
    feed_forward_per_token: float
    head_per_token: float

    @classmethod
    def from_config(cls, config: object) -> ModelShape:
        """Raises `ValueError` for a missing name, naming those that were looked for."""
        fields = ConfigFields(config)
        return cls(
            attention=AttentionShape.from_fields(fields),
            feed_forward_per_token=_feed_forward(fields),
            head_per_token=2.0 * fields.hidden * fields.need("vocab_size", "padded_vocab_size"),
        )

    def forward_flops_per_token(self) -> float:
        """Of the whole model, without the indexer of sparse attention."""
        attention = self.attention.flops_per_token()
        return attention + self.feed_forward_per_token + self.head_per_token


def _feed_forward(fields: ConfigFields) -> float:
    """FLOPs per token of all layers: dense ones, and active plus shared experts with router."""
    matrices = 2 if fields.find("swiglu", "gated_linear_unit") is False else 3
    per_unit = 2.0 * fields.hidden * matrices
    num_experts = fields.find(*_EXPERT_COUNTS, default=0)
    num_moe = sum(_moe_layers(fields)) if num_experts else 0
    flops = 0.0
    if num_moe < fields.num_layers:
        dense = fields.need("intermediate_size", "ffn_hidden_size")
        flops += (fields.num_layers - num_moe) * per_unit * dense
    if num_moe:
        active = _active_expert_size(fields)
        flops += num_moe * (per_unit * active + 2.0 * fields.hidden * num_experts)
    return flops


def _active_expert_size(fields: ConfigFields) -> int:
    expert = fields.need(
        "moe_intermediate_size", "moe_ffn_hidden_size", "intermediate_size", "ffn_hidden_size"
    )
    shared = fields.find("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")
    if shared is None:
        shared = expert * fields.find("n_shared_experts", default=0)
    return expert * fields.need("num_experts_per_tok", "moe_router_topk") + shared


def _moe_layers(fields: ConfigFields) -> list[bool]:
    """Whether each layer has experts."""
    layers = range(fields.num_layers)
    frequency = fields.find("moe_layer_freq", "decoder_sparse_step", default=1)
    if isinstance(frequency, (list, tuple)):
        return fields.flags_per_layer("moe_layer_freq", frequency)
    if not isinstance(frequency, int):
        raise ValueError(f"moe_layer_freq is {frequency!r}: pass a whole number or a list")
    # A decoder_sparse_step counts layers from 1, a moe_layer_freq from 0.
    start = 0 if fields.find("moe_layer_freq") is not None else 1
    first_moe = fields.find("first_k_dense_replace", default=0)
    dense = set(fields.find("mlp_only_layers", default=()))
    return [
        layer >= first_moe and (layer + start) % frequency == 0 and layer not in dense
        for layer in layers
    ]
