"""GLM-4.5 MoE: grouped attention, the experts of DeepSeek-V3, prediction layers."""

from __future__ import annotations

from miles_periodic.plugins.fast_resharding.families.decoder import (
    copies_in_prediction_layers,
    dense_mlp,
    embedding,
    grouped_attention,
    head,
    prediction_layers,
)
from miles_periodic.plugins.fast_resharding.families.deepseek import sparse_mlp
from miles_periodic.plugins.fast_resharding.families.table import Family, Rule, in_layers
from miles_periodic.plugins.fast_resharding.model_config import ModelConfig


def rules(config: ModelConfig) -> list[Rule]:
    num_layers, num_dense = config.num_layers, config.count("first_k_dense_replace")
    attention = grouped_attention(
        config, bias=config.flag("attention_bias"), head_norms=config.flag("use_qk_norm")
    )
    sparse = sparse_mlp(config)
    return [
        embedding(config, copies_in_prediction_layers(config, "embed_tokens.weight")),
        *in_layers(range(num_layers), attention),
        *in_layers(range(num_dense), dense_mlp(config)),
        *in_layers(range(num_dense, num_layers), sparse),
        *prediction_layers(config, [*attention, *sparse]),
        *head(config, copies_in_prediction_layers(config, "shared_head.head.weight")),
    ]


FAMILIES = (Family("glm4-moe", ("glm4_moe",), rules),)
