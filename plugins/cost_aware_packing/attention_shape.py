"""What attention costs, layer kind by layer kind: FLOPs per token and per (query, key) pair.

Legend: h hidden size, H heads, G key-value heads, d head size.

Sources: grouped-query attention, Ainslie et al. 2023; latent attention (MLA), DeepSeek-V2 report,
section 2.1; its sparse form with an indexer (DSA), DeepSeek-V3.2 report, section 2, computed in
MLA's multi-query mode, in which every head reads the latent itself; gated delta rule, Yang et al.
2024, in recurrent form.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from miles_periodic.plugins.cost_aware_packing.config_fields import ConfigFields, unknown_cost

FULL_ATTENTION = "full_attention"
SLIDING_ATTENTION = "sliding_attention"
LINEAR_ATTENTION = "linear_attention"
_NO_VALUE = object()


@dataclass(frozen=True)
class Indexer:
    """The indexer that chooses the keys of sparse attention, in FLOPs of the forward pass.

    Attributes:
        num_layers: layers that have one; the others take over the choice of a layer before them.
        per_token, per_pair: of one such layer; a pair is any earlier key, chosen or not.
        is_trained: whether a loss trains it; without one it has no backward pass.
        target_per_pair: attention scores of one layer that its loss compares with, per pair.
    """

    num_layers: int
    per_token: float
    per_pair: float
    is_trained: bool = False
    target_per_pair: float = 0.0


@dataclass(frozen=True)
class AttentionShape:
    """Forward cost of the attention of a model, in FLOPs.

    Attributes:
        projection_per_token: query, key, value and output projections of one layer, per token.
        per_pair: scores and values of one layer, per (query, key) pair.
        windows: for each layer with softmax attention the most keys that a query sees, None for
            all.
        num_linear_layers: layers whose attention is linear in tokens instead.
        linear_per_token: all of one such layer, per token.
        indexer: that of sparse attention, or None.
    """

    projection_per_token: float
    per_pair: float
    windows: tuple[int | None, ...]
    num_linear_layers: int = 0
    linear_per_token: float = 0.0
    indexer: Indexer | None = None

    @classmethod
    def from_fields(cls, fields: ConfigFields) -> AttentionShape:
        kinds = layer_kinds(fields)
        num_linear = kinds.count(LINEAR_ATTENTION)
        most_keys = fields.find("index_topk", "dsa_indexer_topk")
        window = most_keys or sliding_window(fields)
        projection, per_pair = (
            _latent(fields, sparse=bool(most_keys)) if _is_latent(fields) else _grouped(fields)
        )
        return cls(
            projection_per_token=projection,
            per_pair=per_pair,
            windows=tuple(
                window if most_keys or kind == SLIDING_ATTENTION else None
                for kind in kinds
                if kind != LINEAR_ATTENTION
            ),
            num_linear_layers=num_linear,
            linear_per_token=_gated_delta(fields) if num_linear else 0.0,
            indexer=_indexer(fields) if most_keys else None,
        )

    def flops_per_token(self) -> float:
        """Of all layers, without the indexer."""
        softmax = len(self.windows) * self.projection_per_token
        return softmax + self.num_linear_layers * self.linear_per_token

    def flops_per_pair(self) -> dict[int | None, float]:
        """Of all layers by window (None: every earlier key), without the indexer."""
        return {w: n * self.per_pair for w, n in Counter(self.windows).items()}


def _is_latent(fields: ConfigFields) -> bool:
    # Megatron's arguments give every model a kv_lora_rank, so there only its own flag decides.
    latent = fields.find("multi_latent_attention", default=_NO_VALUE)
    return bool(fields.find("kv_lora_rank")) if latent is _NO_VALUE else bool(latent)


def _grouped(fields: ConfigFields) -> tuple[float, float]:
    """One layer's projections per token, and its attention per pair."""
    h, heads = fields.hidden, fields.num_heads
    groups = fields.find("num_key_value_heads", "num_query_groups", default=heads)
    if fields.find("group_query_attention") is False:
        groups = heads
    d = fields.find("head_dim", "kv_channels", default=h // heads)
    projections = 2.0 * h * d * (heads + 2 * groups) + 2.0 * heads * d * h
    return projections, 2.0 * heads * (d + d)


def _latent(fields: ConfigFields, *, sparse: bool) -> tuple[float, float]:
    h, heads, rank = fields.hidden, fields.num_heads, fields.need("kv_lora_rank")
    plain = fields.need("qk_nope_head_dim", "qk_head_dim")
    rotary = fields.need("qk_rope_head_dim", "qk_pos_emb_head_dim")
    value = fields.need("v_head_dim")
    query_rank = fields.find("q_lora_rank")
    query_size = heads * (plain + rotary)
    query = h * query_size if query_rank is None else query_rank * (h + query_size)
    key_value = h * (rank + rotary) + rank * heads * (plain + value)
    projections = 2.0 * (query + key_value + heads * value * h)
    key_size, value_size = (rank + rotary, rank) if sparse else (plain + rotary, value)
    return projections, 2.0 * heads * (key_size + value_size)


def _gated_delta(fields: ConfigFields) -> float:
    """One layer per token: projections, short convolution, and four products with the state."""
    key_heads, value_heads = (fields.need(f"linear_num_{part}_heads") for part in ("key", "value"))
    key_size, value_size = (fields.need(f"linear_{part}_head_dim") for part in ("key", "value"))
    keys, values = key_heads * key_size, value_heads * value_size
    projections = fields.hidden * (2 * keys + 2 * values + 2 * value_heads + values)
    convolution = fields.find("linear_conv_kernel_dim", default=4) * (2 * keys + values)
    return 2.0 * (projections + convolution + 4 * value_heads * key_size * value_size)


def _indexer(fields: ConfigFields) -> Indexer:
    heads = fields.need("index_n_heads", "dsa_indexer_n_heads")
    d = fields.need("index_head_dim", "dsa_indexer_head_dim")
    source = fields.find("q_lora_rank", default=fields.hidden)
    is_trained = (fields.find("dsa_indexer_loss_coeff") or 0.0) > 0
    is_dense = is_trained and not fields.find("dsa_indexer_use_sparse_loss")
    query_size = fields.find("qk_nope_head_dim", "qk_head_dim", default=0) + fields.find(
        "qk_rope_head_dim", "qk_pos_emb_head_dim", default=0
    )
    return Indexer(
        num_layers=_num_indexers(fields),
        per_token=2.0 * (source * heads * d + fields.hidden * (d + heads)),
        per_pair=2.0 * heads * d,
        is_trained=is_trained,
        target_per_pair=2.0 * fields.num_heads * query_size if is_dense else 0.0,
    )


def _num_indexers(fields: ConfigFields) -> int:
    """Layers that choose keys themselves: the first ones, then one in every so many."""
    every = fields.find("dsa_indexer_topk_freq", "index_topk_freq", default=1)
    offset = max(1, fields.find("dsa_indexer_skip_topk_offset", default=1))
    layers = range(1, fields.num_layers + 1)
    return sum(max(layer - offset, 0) % every == 0 for layer in layers)


def sliding_window(fields: ConfigFields) -> int | None:
    """Most keys that a query of a sliding layer sees, itself included; None where there is no end.

    Configs say so with a window of 0 or -1, and Megatron with a left side of -1.
    """
    if fields.find("use_sliding_window") is False:
        return None
    window = fields.find("sliding_window")
    if window is None and (sides := fields.find("window_size")):
        # Megatron counts the keys to the left of the query, without the query.
        window = sides[0] + 1
    return window if window is not None and window > 0 else None


def layer_kinds(fields: ConfigFields) -> list[str]:
    """The kind of attention of each layer."""
    kinds = fields.find("layer_types")
    if kinds is not None:
        unknown = sorted(set(kinds) - {FULL_ATTENTION, SLIDING_ATTENTION, LINEAR_ATTENTION})
        if unknown:
            raise unknown_cost(f"layer_types names {', '.join(unknown)},")
        fields.flags_per_layer("layer_types", list(kinds))
        return list(kinds)
    slides = _sliding_layers(fields)
    linear = _linear_layers(fields)
    return [
        LINEAR_ATTENTION if is_linear else SLIDING_ATTENTION if is_sliding else FULL_ATTENTION
        for is_linear, is_sliding in zip(linear, slides, strict=True)
    ]


def _linear_layers(fields: ConfigFields) -> list[bool]:
    every = fields.find("full_attention_interval")
    if fields.find("experimental_attention_variant") == "gated_delta_net":
        every = fields.need("linear_attention_freq")
    if isinstance(every, (list, tuple)):
        return fields.flags_per_layer("linear_attention_freq", every)
    return [every is not None and layer % every != 0 for layer in range(1, fields.num_layers + 1)]


def _sliding_layers(fields: ConfigFields) -> list[bool]:
    skip = fields.find("window_attn_skip_freq", "sliding_window_pattern")
    if isinstance(skip, (list, tuple)):
        return fields.flags_per_layer("window_attn_skip_freq", skip)
    has_window = sliding_window(fields) is not None
    first = fields.find("max_window_layers", default=0) if fields.find("use_sliding_window") else 0
    return [
        has_window and layer > first and (not skip or layer % skip != 0)
        for layer in range(1, fields.num_layers + 1)
    ]
