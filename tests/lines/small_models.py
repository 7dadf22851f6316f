"""A small model in Hugging Face's form, and what a conversion of it has to give."""

import pytest
import torch

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding import reshard

#: A model small enough to see through, with everything that makes a conversion hard.
CONFIG = {
    "model_type": "qwen3_moe",
    "dtype": "bfloat16",
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "vocab_size": 20,
    "num_experts": 4,
    "moe_intermediate_size": 4,
    "intermediate_size": 16,
    "tie_word_embeddings": False,
}


def state(config):
    """The model's tensors in Hugging Face's form, each with values of its own."""
    hidden, size = config["hidden_size"], config["head_dim"]
    inner, vocabulary = config["moe_intermediate_size"], config["vocab_size"]
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocabulary, hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        own = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (heads * size, hidden),
            "self_attn.k_proj.weight": (groups * size, hidden),
            "self_attn.v_proj.weight": (groups * size, hidden),
            "self_attn.o_proj.weight": (hidden, heads * size),
            "self_attn.q_norm.weight": (size,),
            "self_attn.k_norm.weight": (size,),
            "mlp.gate.weight": (config["num_experts"], hidden),
        }
        for expert in range(config["num_experts"]):
            own[f"mlp.experts.{expert}.gate_proj.weight"] = (inner, hidden)
            own[f"mlp.experts.{expert}.up_proj.weight"] = (inner, hidden)
            own[f"mlp.experts.{expert}.down_proj.weight"] = (hidden, inner)
        shapes |= {prefix + name: shape for name, shape in own.items()}
    generator = torch.Generator().manual_seed(3)
    dtype = getattr(torch, config["dtype"])
    return {n: torch.randn(s, generator=generator).to(dtype) for n, s in shapes.items()}


def written(folder):
    """Every tensor of a published folder."""
    from safetensors.torch import load_file

    return {n: t for path in folder.glob("*.safetensors") for n, t in load_file(path).items()}


def same(found, expected):
    """Whether two models are the same to the last bit, types included."""
    return found.keys() == expected.keys() and all(
        found[n].dtype == t.dtype and torch.equal(found[n], t) for n, t in expected.items()
    )


#: Sizes with which even this model is several shards and many tasks.
IN_MANY_TASKS = {"unit_bytes": 64, "task_bytes": 256, "shard_bytes": 2000}


def refused(match, source, target, model_folder, **options):
    """The conversion raises an error that matches, and leaves no target."""
    with pytest.raises(PeriodicError, match=match):
        reshard(source, target, config=model_folder, **options)
    assert not target.exists()
