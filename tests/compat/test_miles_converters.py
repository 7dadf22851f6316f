"""Models with an indexer, converted here and by Miles's own converter: the same bits."""

import importlib.util
import re
from types import SimpleNamespace

import pytest
import torch
from megatron_states import cuts, sources, with_indexers_of_miles
from miles_trees import TREES
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from miles_periodic.cli.bench.torch_dist_writer import TorchDistWriter
from miles_periodic.plugins.fast_resharding import reshard

CONVERTER = "miles/backends/megatron_utils/megatron_to_hf/deepseekv3.py"
#: Miles's converter knows no other sizes of an indexer's heads, and of what it rotates.
HEAD, ROTATED = 128, 64
FIELDS = {
    "vocab_size": 20,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": ROTATED,
    "v_head_dim": 8,
    "index_n_heads": 3,
    "index_head_dim": HEAD,
    "moe_intermediate_size": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "indexer_rope_interleave": True,
    "num_nextn_predict_layers": 1,
    "pad_token_id": None,
}
JOINED = {
    "enorm": ("enorm", (16,)),
    "hnorm": ("hnorm", (16,)),
    "eh_proj": ("eh_proj", (16, 32)),
    "final_layernorm": ("shared_head.norm", (16,)),
}


@pytest.fixture(scope="module")
def tensors(tmp_path_factory):
    """The folder of a GLM-5, and what Miles's checkpoint of it holds, key by key."""
    folder = tmp_path_factory.mktemp("model")
    config = AutoConfig.for_model("glm_moe_dsa", **FIELDS)
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    torch.manual_seed(3)
    for tensor in (*model.parameters(), *model.buffers()):
        torch.nn.init.normal_(tensor)
    model.save_pretrained(folder)
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    for name in [name for name in state if name.startswith("model.layers.1.")]:
        state[name.replace("layers.1.", "layers.2.")] = torch.randn_like(state[name])
    tensors = with_indexers_of_miles(dict(sources(state, 4)), ROTATED)
    return folder, dict(_with_prediction_layer(tensors))


def _with_prediction_layer(tensors):
    for key, tensor in tensors.items():
        yield key.replace("decoder.layers.2.", "mtp.layers.0.transformer_layer."), tensor
    for key, (_, shape) in JOINED.items():
        yield f"mtp.layers.0.{key}.weight", torch.randn(shape, dtype=torch.bfloat16)


@pytest.mark.parametrize("tree", TREES)
def test_a_model_with_an_indexer_becomes_what_miles_makes_of_it(tree, tensors, tmp_path):
    folder, held = tensors
    with TorchDistWriter(tmp_path / "source", num_files=3) as writer:
        for key, tensor in held.items():
            writer.add(key, tensor, cuts(key, tensor, 2))
    reshard(tmp_path / "source", tmp_path / "target", config=folder)
    found = load_file(tmp_path / "target" / "model.safetensors")
    expected = dict(converted_by_miles(TREES[tree] / CONVERTER, held))
    assert found.keys() == expected.keys() and "model.layers.2.enorm.weight" in found
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


def converted_by_miles(path, held):
    """What Miles's converter makes of its model's parameters, which it names otherwise."""
    spec = importlib.util.spec_from_file_location("converter_of_miles", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    arguments = SimpleNamespace(
        hidden_size=FIELDS["hidden_size"],
        num_attention_heads=FIELDS["num_attention_heads"],
        num_query_groups=FIELDS["num_key_value_heads"],
        num_layers=FIELDS["num_hidden_layers"],
        kv_channels=None,
        indexer_rope_interleave=True,
    )
    for key, tensor in held.items():
        name = re.sub(r"experts\.experts\.(\d+)\.(.*)\.weight", r"experts.\2.weight\1", key)
        if "word_embeddings" in name or "output_layer" in name:
            tensor = tensor[: FIELDS["vocab_size"]]
        yield from module.convert_deepseekv3_to_hf(arguments, f"module.module.{name}", tensor)
