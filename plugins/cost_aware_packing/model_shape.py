"""The sizes of a model that decide its cost, from a Hugging Face config or Megatron's arguments.

Legend: h hidden size, H heads, G key-value heads, d head size, f feed-forward size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FULL_ATTENTION = "full_attention"
SLIDING_ATTENTION = "sliding_attention"
NO_VALUE = object()


@dataclass(frozen=True)
class ModelShape:
    """Forward cost of the parts of a model, in FLOPs.

    Attributes:
        projection_per_token: query, key, value and output projections of one layer, per token.
        indexer_per_token: projections of the sparse-attention indexer of one layer, per token.
        feed_forward_per_token: feed-forward of all layers (active experts only), per token.
        head_per_token: output layer, per token.
        attention_per_pair: scores and values of one layer, per (query, key) pair.
        indexer_per_pair: indexer scores of one layer, per pair; 0 without an indexer.
        windows: for each layer the most keys that a query sees, None for all.
    """

    projection_per_token: float
    indexer_per_token: float
    feed_forward_per_token: float
    head_per_token: float
    attention_per_pair: float
    indexer_per_pair: float
    windows: tuple[int | None, ...]

    @classmethod
    def from_config(cls, config: object) -> ModelShape:
        """Raises `ValueError` for a missing name, naming those that were looked for."""
        fields = ConfigFields(config)
        projection, per_pair = _attention(fields)
        indexer_projection, indexer_per_pair = _indexer(fields)
        return cls(
            projection_per_token=projection,
            indexer_per_token=indexer_projection,
            feed_forward_per_token=_feed_forward(fields),
            head_per_token=2.0 * fields.hidden * fields.need("vocab_size", "padded_vocab_size"),
            attention_per_pair=per_pair,
            indexer_per_pair=indexer_per_pair,
            windows=_windows(fields),
        )

    def forward_flops_per_token(self) -> float:
        per_layer = self.projection_per_token + self.indexer_per_token
        return len(self.windows) * per_layer + self.feed_forward_per_token + self.head_per_token

    def forward_flops_per_pair(self) -> dict[int | None, float]:
        """FLOPs per (query, key) pair of all layers, by window (None: every earlier key)."""
        flops: dict[int | None, float] = {}
        for window in self.windows:
            flops[window] = flops.get(window, 0.0) + self.attention_per_pair
        if self.indexer_per_pair:
            flops[None] = flops.get(None, 0.0) + len(self.windows) * self.indexer_per_pair
        return flops


class ConfigFields:
    """Looks values up under any of several names, in a mapping or an object."""

    def __init__(self, config: object) -> None:
        self._config = config
        self.hidden = self.need("hidden_size")
        self.num_layers = self.need("num_hidden_layers", "num_layers")
        self.num_heads = self.need("num_attention_heads")

    def find(self, *names: str, default: object = None) -> object:
        """The first value that is there and not None."""
        for name in names:
            if isinstance(self._config, Mapping):
                value = self._config.get(name)
            else:
                value = getattr(self._config, name, None)
            if value is not None:
                return value
        return default

    def need(self, *names: str) -> int:
        value = self.find(*names)
        if value is None:
            raise ValueError(f"the model config lacks {' or '.join(names)}: add it")
        return value


def _attention(fields: ConfigFields) -> tuple[float, float]:
    """FLOPs of one layer's projections per token, and of its attention per pair."""
    return _latent_attention(fields) if _is_latent(fields) else _grouped_attention(fields)


def _is_latent(fields: ConfigFields) -> bool:
    # Megatron's arguments give every model a kv_lora_rank, so there only its own flag decides.
    latent = fields.find("multi_latent_attention", default=NO_VALUE)
    return bool(fields.find("kv_lora_rank")) if latent is NO_VALUE else bool(latent)


def _grouped_attention(fields: ConfigFields) -> tuple[float, float]:
    h, heads = fields.hidden, fields.num_heads
    groups = fields.find("num_key_value_heads", "num_query_groups", default=heads)
    if fields.find("group_query_attention") is False:
        groups = heads
    d = fields.find("head_dim", "kv_channels", default=h // heads)
    projections = 2.0 * h * d * (heads + 2 * groups) + 2.0 * heads * d * h
    return projections, 2.0 * heads * (d + d)


def _latent_attention(fields: ConfigFields) -> tuple[float, float]:
    h, heads, rank = fields.hidden, fields.num_heads, fields.need("kv_lora_rank")
    plain = fields.need("qk_nope_head_dim", "qk_head_dim")
    rotary = fields.need("qk_rope_head_dim", "qk_pos_emb_head_dim")
    value = fields.need("v_head_dim")
    query_rank = fields.find("q_lora_rank")
    query_size = heads * (plain + rotary)
    query = h * query_size if query_rank is None else query_rank * (h + query_size)
    key_value = h * (rank + rotary) + rank * heads * (plain + value)
    projections = 2.0 * (query + key_value + heads * value * h)
    return projections, 2.0 * heads * (plain + rotary + value)


def _indexer(fields: ConfigFields) -> tuple[float, float]:
    """FLOPs of one layer's sparse-attention indexer, per token and per pair."""
    if not fields.find("index_topk", "dsa_indexer_topk"):
        return 0.0, 0.0
    heads = fields.need("index_n_heads", "dsa_indexer_n_heads")
    d = fields.need("index_head_dim", "dsa_indexer_head_dim")
    source = fields.find("q_lora_rank", default=fields.hidden)
    return 2.0 * (source * heads * d + fields.hidden * (d + heads)), 2.0 * heads * d


def _feed_forward(fields: ConfigFields) -> float:
    """FLOPs per token of all layers: dense ones, and active plus shared experts with router."""
    matrices = 2 if fields.find("swiglu", "gated_linear_unit") is False else 3
    per_unit = 2.0 * fields.hidden * matrices
    num_experts = fields.find("n_routed_experts", "num_experts", "num_local_experts", default=0)
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
        if len(frequency) != fields.num_layers:
            raise ValueError(
                f"moe_layer_freq has {len(frequency)} entries for {fields.num_layers} layers: "
                "give one per layer"
            )
        return [bool(entry) for entry in frequency]
    # A decoder_sparse_step counts layers from 1, a moe_layer_freq from 0.
    start = 0 if fields.find("moe_layer_freq") is not None else 1
    first_moe = fields.find("first_k_dense_replace", default=0)
    dense = set(fields.find("mlp_only_layers", default=()))
    return [
        layer >= first_moe and (layer + start) % frequency == 0 and layer not in dense
        for layer in layers
    ]


def _windows(fields: ConfigFields) -> tuple[int | None, ...]:
    """Most keys that a query of each layer sees."""
    most_keys = fields.find("index_topk", "dsa_indexer_topk")
    if most_keys:
        return (most_keys,) * fields.num_layers
    window = _sliding_window(fields)
    return tuple(window if slides else None for slides in _sliding_layers(fields, window))


def _sliding_window(fields: ConfigFields) -> int | None:
    if fields.find("use_sliding_window") is False:
        return None
    window = fields.find("sliding_window")
    if window is None and (sides := fields.find("window_size")):
        # Megatron counts the keys to the left of the query, without the query.
        return sides[0] + 1
    return window


def _sliding_layers(fields: ConfigFields, window: int | None) -> list[bool]:
    num_layers = fields.num_layers
    kinds = fields.find("layer_types")
    if kinds is not None:
        unknown = sorted(set(kinds) - {FULL_ATTENTION, SLIDING_ATTENTION})
        if unknown:
            raise ValueError(
                f"layer_types names {', '.join(unknown)}, whose cost is not known: "
                f"use {FULL_ATTENTION} or {SLIDING_ATTENTION}, or build CostModel(linear, "
                "attention) yourself and calibrate it with fit"
            )
        return [kind == SLIDING_ATTENTION for kind in kinds]
    skip = fields.find("window_attn_skip_freq")
    if isinstance(skip, (list, tuple)):
        return [bool(entry) for entry in skip]
    return [window is not None and (not skip or (i + 1) % skip != 0) for i in range(num_layers)]
