"""Qwen2 (biases of queries, keys, values), Qwen3 (norms of heads instead) and Qwen3-MoE."""

from __future__ import annotations

from miles_periodic.plugins.fast_resharding.families.decoder import (
    dense_mlp,
    embedding,
    experts,
    grouped_attention,
    head,
    mlp_norm,
    router,
)
from miles_periodic.plugins.fast_resharding.families.table import Family, Rule, in_layers
from miles_periodic.plugins.fast_resharding.model_config import ModelConfig


def qwen2(config: ModelConfig) -> list[Rule]:
    layer = [*grouped_attention(config, bias=True), *dense_mlp(config)]
    return [embedding(config), *in_layers(range(config.num_layers), layer), *head(config)]


def qwen3(config: ModelConfig) -> list[Rule]:
    layer = [*_attention(config), *dense_mlp(config)]
    return [embedding(config), *in_layers(range(config.num_layers), layer), *head(config)]


def qwen3_moe(config: ModelConfig) -> list[Rule]:
    every, num_experts = range(config.num_layers), config.num_experts
    step = config.size("decoder_sparse_step", 1)
    dense = config.layers("mlp_only_layers")
    sparse = [n for n in every if n not in dense and (n + 1) % step == 0]
    return [
        embedding(config),
        *in_layers(every, _attention(config)),
        *in_layers([n for n in every if n not in sparse], dense_mlp(config)),
        *in_layers(
            sparse,
            [*mlp_norm(config), *router(config, num_experts), *experts(config, num_experts)],
        ),
        *head(config),
    ]


def _attention(config: ModelConfig) -> list[Rule]:
    bias = config.flag("attention_bias")
    return grouped_attention(config, bias=bias, output_bias=bias, head_norms=True)


FAMILIES = (
    Family("qwen2", ("qwen2",), qwen2),
    Family("qwen3", ("qwen3",), qwen3),
    Family("qwen3-moe", ("qwen3_moe",), qwen3_moe),
)
