"""Checkpoints of real Megatron-core trees, converted: transformers computes Megatron's logits."""

import json
from pathlib import Path

import pytest
import torch
from resharded_models import CHECKPOINTS, VOCABULARY, tokens
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


@pytest.fixture(scope="module", params=LABELS)
def written(request, megatron_ranks):
    """The folders of checkpoints and of logits."""
    facts = megatron_ranks(request.param, "resharded_models.py", worlds=(2, 1))
    return tuple(Path(facts[world][0]["folder"]) for world in (2, 1))


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_converted_model_computes_the_logits_that_megatron_computes(written, name, tmp_path):
    model = CHECKPOINTS[name][0]
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[model]), encoding="utf-8")
    checkpoints, logits_of = written
    target = tmp_path / "target"
    reshard(checkpoints / name, target, config=tmp_path, verify=True)
    loaded, info = AutoModelForCausalLM.from_pretrained(target, output_loading_info=True)
    assert not any(info.values()), info
    with torch.no_grad():
        logits = loaded.eval()(tokens()).logits
    expected = torch.load(logits_of / f"{name}.pt")
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
