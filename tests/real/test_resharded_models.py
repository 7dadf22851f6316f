"""Checkpoints of real Megatron-core trees, converted: transformers computes Megatron's logits."""

import json
from pathlib import Path

import pytest
import torch
from resharded_models import VOCABULARY, checkpoints_of, tokens
from transformers import AutoModelForCausalLM

from miles_periodic.plugins.fast_resharding import reshard

LABELS = ["0.16.1", "0.19.2"]

DENSE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "max_position_embeddings": 64,
    "dtype": "float32",
    "attn_implementation": "eager",
}
CONFIGS = {
    "llama": {**DENSE, "model_type": "llama"},
    "tied": {**DENSE, "model_type": "llama", "tie_word_embeddings": True},
    "qwen2": {**DENSE, "model_type": "qwen2"},
    "qwen3-moe": {
        **DENSE,
        "model_type": "qwen3_moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "deepseek-v3": {
        **{name: value for name, value in DENSE.items() if name != "head_dim"},
        "model_type": "deepseek_v3",
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 1.5,
        "norm_topk_prob": True,
        "num_nextn_predict_layers": 0,
    },
}
INDEXER = {"index_n_heads": 2, "index_head_dim": 12, "index_topk": 4}
CONFIGS["deepseek-v3.2"] = {**CONFIGS["deepseek-v3"], **INDEXER, "model_type": "deepseek_v32"}
CONFIGS["glm5"] = {
    **CONFIGS["deepseek-v3.2"],
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 4,
    "indexer_rope_interleave": True,
    "indexer_types": ["full", "full", "shared", "full"],
}
WRITTEN = [(label, name) for label in LABELS for name in checkpoints_of(label)]


@pytest.mark.parametrize(("label", "name"), WRITTEN)
def test_a_converted_model_computes_the_logits_that_megatron_computes(
    label, name, megatron_ranks, tmp_path
):
    facts = megatron_ranks(label, "resharded_models.py", label, worlds=(2, 1))
    checkpoints, logits_of = (Path(facts[world][0]["folder"]) for world in (2, 1))
    model = checkpoints_of(label)[name][0]
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[model]), encoding="utf-8")
    target = tmp_path / "target"
    reshard(checkpoints / name, target, config=tmp_path, verify=True)
    loaded, info = AutoModelForCausalLM.from_pretrained(target, output_loading_info=True)
    assert not any(info.values()), info
    with torch.no_grad():
        logits = loaded.eval()(tokens()).logits
    expected = torch.load(logits_of / f"{name}.pt")
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
