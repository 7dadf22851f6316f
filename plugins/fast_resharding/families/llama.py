"""Llama: grouped attention and gated MLPs, nothing else."""

from __future__ import annotations

from miles_periodic.plugins.fast_resharding.families.decoder import (
    dense_mlp,
    embedding,
    grouped_attention,
    head,
)
from miles_periodic.plugins.fast_resharding.families.table import Family, Rule, in_layers
from miles_periodic.plugins.fast_resharding.model_config import ModelConfig


def rules(config: ModelConfig) -> list[Rule]:
    bias = config.flag("attention_bias")
    layer = [*grouped_attention(config, bias=bias, output_bias=bias), *dense_mlp(config)]
    return [embedding(config), *in_layers(range(config.num_layers), layer), *head(config)]


FAMILIES = (Family("llama", ("llama",), rules),)
