"""DeepSeek-V3 and Kimi-K2: latent attention, shared and routed experts, prediction layers."""

from __future__ import annotations

from miles_periodic.plugins.fast_resharding.families.decoder import (
    SOURCE,
    TARGET,
    copies_in_prediction_layers,
    dense_mlp,
    embedding,
    experts,
    head,
    input_norm,
    mlp_norm,
    norm,
    prediction_layers,
    router,
    shared_experts,
)
from miles_periodic.plugins.fast_resharding.families.table import Family, Rule, in_layers, whole
from miles_periodic.plugins.fast_resharding.model_config import ModelConfig


def rules(config: ModelConfig) -> list[Rule]:
    num_layers, num_dense = config.num_layers, config.count("first_k_dense_replace")
    attention, sparse = latent_attention(config), sparse_mlp(config)
    return [
        embedding(config, copies_in_prediction_layers(config, "embed_tokens.weight")),
        *in_layers(range(num_layers), attention),
        *in_layers(range(num_dense), dense_mlp(config)),
        *in_layers(range(num_dense, num_layers), sparse),
        *prediction_layers(config, [*attention, *sparse]),
        *head(config, copies_in_prediction_layers(config, "shared_head.head.weight")),
    ]


def latent_attention(config: ModelConfig) -> list[Rule]:
    """Queries through a narrow layer where `q_lora_rank` is set; keys and values always."""
    source, target = f"{SOURCE}.self_attention", f"{TARGET}.self_attn"
    hidden, heads = config.hidden, config.num_heads
    rope, plain = config.size("qk_rope_head_dim"), config.size("qk_nope_head_dim")
    value, latent = config.size("v_head_dim"), config.size("kv_lora_rank")
    return [
        *input_norm(config),
        *_queries(config, heads * (rope + plain)),
        whole(
            f"{source}.linear_kv_down_proj.weight",
            f"{target}.kv_a_proj_with_mqa.weight",
            latent + rope,
            hidden,
            quantises=True,
        ),
        *_latent_norm("kv", latent),
        whole(
            f"{source}.linear_kv_up_proj.weight",
            f"{target}.kv_b_proj.weight",
            heads * (plain + value),
            latent,
            quantises=True,
        ),
        whole(
            f"{source}.linear_proj.weight",
            f"{target}.o_proj.weight",
            hidden,
            heads * value,
            quantises=True,
        ),
    ]


def _queries(config: ModelConfig, rows: int) -> list[Rule]:
    source, target = f"{SOURCE}.self_attention", f"{TARGET}.self_attn"
    rank, hidden = config.count("q_lora_rank"), config.hidden

    def matrix(which: str, name: str, *shape: int) -> Rule:
        names = f"{source}.linear_{which}.weight", f"{target}.{name}.weight"
        return whole(*names, *shape, quantises=True)

    if not rank:
        return [matrix("q_proj", "q_proj", rows, hidden)]
    return [
        matrix("q_down_proj", "q_a_proj", rank, hidden),
        *_latent_norm("q", rank),
        matrix("q_up_proj", "q_b_proj", rows, rank),
    ]


def _latent_norm(which: str, size: int) -> list[Rule]:
    return norm(
        (
            f"self_attention.linear_{which}_up_proj.layer_norm_weight",
            f"self_attention.{which}_layernorm.weight",
        ),
        f"{TARGET}.self_attn.{which}_a_layernorm.weight",
        size,
    )


def sparse_mlp(config: ModelConfig) -> list[Rule]:
    num_experts = config.num_experts
    return [
        *mlp_norm(config),
        *router(config, num_experts, correction=True),
        *shared_experts(config),
        *experts(config, num_experts),
    ]


FAMILIES = (Family("deepseek-v3", ("deepseek_v3", "kimi_k2"), rules),)
