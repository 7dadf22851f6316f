from __future__ import annotations

from types import SimpleNamespace

import pytest

from miles_periodic.plugins.cost_aware_packing.model_shape import ModelShape

GROUPED = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": 100,
}
KIMI_K2 = {
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 384,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "vocab_size": 163840,
}


def test_megatrons_default_latent_rank_does_not_make_a_model_latent():
    arguments = SimpleNamespace(
        hidden_size=64,
        num_layers=4,
        num_attention_heads=8,
        group_query_attention=True,
        num_query_groups=2,
        kv_channels=16,
        ffn_hidden_size=128,
        padded_vocab_size=100,
        multi_latent_attention=False,
        kv_lora_rank=32,
        qk_head_dim=128,
        qk_pos_emb_head_dim=64,
        v_head_dim=128,
        num_experts=None,
        moe_layer_freq=1,
        swiglu=True,
    )
    assert ModelShape.from_config(arguments) == ModelShape.from_config(GROUPED)


def test_active_parameters_of_a_published_model_come_out():
    flops = ModelShape.from_config(KIMI_K2).forward_flops_per_token()
    assert flops / 2 == pytest.approx(32e9, rel=0.02)


@pytest.mark.parametrize(
    ("pattern", "num_moe_layers"),
    [
        ({}, 4),
        ({"first_k_dense_replace": 1}, 3),
        ({"moe_layer_freq": 2}, 2),
        ({"moe_layer_freq": [0, 1, 1, 1]}, 3),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, 1),
    ],
)
def test_only_layers_with_experts_cost_active_experts(pattern, num_moe_layers):
    experts = {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    shape = ModelShape.from_config({**GROUPED, **experts, **pattern})
    moe_layer = 6 * 64 * 2 * 32 + 2 * 64 * 16
    assert shape.feed_forward_per_token == (
        num_moe_layers * moe_layer + (4 - num_moe_layers) * 6 * 64 * 128
    )


def test_a_language_model_nested_in_the_config_is_the_one_that_counts():
    nested = {"text_config": GROUPED, "vision_config": {"hidden_size": 9}, "hidden_size": 5}
    assert ModelShape.from_config(nested) == ModelShape.from_config(GROUPED)


def test_experts_are_found_under_the_name_of_megatrons_transformer_config():
    experts = {"moe_router_topk": 2, "moe_ffn_hidden_size": 32}
    arguments = ModelShape.from_config({**GROUPED, **experts, "num_experts": 16})
    assert ModelShape.from_config({**GROUPED, **experts, "num_moe_experts": 16}) == arguments


def test_shared_experts_are_always_active():
    experts = {
        "num_experts": 16,
        "moe_router_topk": 2,
        "moe_ffn_hidden_size": 32,
        "moe_shared_expert_intermediate_size": 48,
    }
    shape = ModelShape.from_config({**GROUPED, **experts})
    assert shape.feed_forward_per_token == 4 * (6 * 64 * (2 * 32 + 48) + 2 * 64 * 16)


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"vocab_size": None}, "lacks vocab_size or padded_vocab_size: add it"),
        ({"intermediate_size": None}, "lacks intermediate_size or ffn_hidden_size: add it"),
        ({"layer_types": ["mamba"] * 4}, "calibrate it with fit"),
        ({"compress_ratios": [4, 128, 4, 128]}, "has compress_ratios.*calibrate it with fit"),
        ({"num_experts": 4, "num_experts_per_tok": 1, "moe_layer_freq": [1]}, "one per layer"),
        ({"num_experts": 4, "moe_layer_freq": "[0]*3"}, "pass a whole number or a list"),
    ],
)
def test_configs_whose_cost_is_not_known_are_refused_with_the_remedy(change, remedy):
    with pytest.raises(ValueError, match=remedy):
        ModelShape.from_config({**GROUPED, **change})
