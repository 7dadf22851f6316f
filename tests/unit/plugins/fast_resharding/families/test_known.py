"""Every family against the names, shapes and types that transformers itself writes."""

import re

import pytest
import torch
from megatron_states import (
    with_indexers_of_miles,
    with_split_keys_and_values,
    write_source,
)
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding import reshard
from miles_periodic.plugins.fast_resharding.families import known
from miles_periodic.plugins.fast_resharding.families.known import OURS, all_families, family_of
from miles_periodic.plugins.fast_resharding.families.sparse_attention import indexed_layers
from miles_periodic.plugins.fast_resharding.families.table import Family
from miles_periodic.plugins.fast_resharding.model_config import ModelConfig

DENSE = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "vocab_size": 20,
    "tie_word_embeddings": False,
    "pad_token_id": None,
}
EXPERTS = {
    "moe_intermediate_size": 8,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0,
}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4,
    "v_head_dim": 4,
}
INDEXED = {
    **DENSE,
    **EXPERTS,
    **LATENT,
    "q_lora_rank": 8,
    "index_n_heads": 3,
    "index_head_dim": 10,
    "index_topk": 4,
    "num_hidden_layers": 3,
}
MODELS = {
    "llama": DENSE,
    "llama with biases": {**DENSE, "attention_bias": True},
    "llama tied": {**DENSE, "tie_word_embeddings": True},
    "qwen2": DENSE,
    "qwen3": DENSE,
    "qwen3_moe": {**DENSE, **EXPERTS},
    "qwen3_moe with a dense layer": {**DENSE, **EXPERTS, "mlp_only_layers": [0]},
    "deepseek_v3": {**DENSE, **EXPERTS, **LATENT, "q_lora_rank": 8},
    "deepseek_v3 without a query rank": {**DENSE, **EXPERTS, **LATENT, "q_lora_rank": None},
    "deepseek_v32": {**INDEXED, "mlp_layer_types": ["sparse", "dense", "sparse"]},
    "glm_moe_dsa": {**INDEXED, "indexer_rope_interleave": True},
    "glm_moe_dsa with shared keys": {**INDEXED, "indexer_types": ["full", "shared", "full"]},
    "glm4_moe": {**DENSE, **EXPERTS, "use_qk_norm": True, "attention_bias": True},
    "gpt_oss": {**DENSE, **EXPERTS, "num_local_experts": 4},
}


def origin(name, folder):
    """A model with random weights, as transformers saves it; the weights themselves."""
    fields = dict(MODELS[name])
    if "kv_lora_rank" in fields:
        del fields["head_dim"]
    config = AutoConfig.for_model(name.split()[0], **fields)
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            torch.nn.init.normal_(tensor)
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module", params=MODELS)
def written(request, tmp_path_factory):
    """A model's name, its folder and its weights."""
    folder = tmp_path_factory.mktemp("model")
    return request.param, folder, origin(request.param, folder)


@pytest.mark.parametrize("how", ["stacked", "layers apart", "keys apart"])
def test_a_family_gives_back_the_model_that_transformers_wrote(written, how, tmp_path):
    name, folder, expected = written
    if name.startswith("gpt_oss") and how == "keys apart":
        how = "layers apart"
    write_source(tmp_path / "source", expected, MODELS[name]["num_key_value_heads"], how)
    reshard(tmp_path / "source", tmp_path / "target", config=folder, unit_bytes=100)
    found = load_file(tmp_path / "target" / "model.safetensors")
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        assert found[key].dtype == tensor.dtype and torch.equal(found[key], tensor), key


@pytest.fixture(params=["glm_moe_dsa", "deepseek_v32"])
def indexed(request, tmp_path):
    """A model type, its folder and its weights."""
    return request.param, tmp_path / "model", origin(request.param, tmp_path / "model")


def assert_given_back(expected, folder, tmp_path, changed):
    write_source(tmp_path / "source", expected, 4, "layers apart", changed=changed)
    reshard(tmp_path / "source", tmp_path / "target", config=folder, unit_bytes=100)
    found = load_file(tmp_path / "target" / "model.safetensors")
    assert found.keys() == expected.keys()
    assert [key for key in expected if not torch.equal(found[key], expected[key])] == []


def test_the_rows_that_miles_rotates_last_come_first_where_they_alternate(indexed, tmp_path):
    model_type, folder, expected = indexed
    rotated = LATENT["qk_rope_head_dim"] if model_type == "glm_moe_dsa" else 0
    assert_given_back(expected, folder, tmp_path, lambda t: with_indexers_of_miles(t, rotated))


def test_keys_and_values_of_absorbed_attention_are_put_together(indexed, tmp_path):
    _, folder, expected = indexed
    changed = {"key_rows": LATENT["qk_nope_head_dim"], "heads": DENSE["num_attention_heads"]}
    assert_given_back(
        expected, folder, tmp_path, lambda t: with_split_keys_and_values(t, **changed)
    )


def test_half_of_the_rows_of_a_tensor_do_not_fill_it(indexed, tmp_path):
    _, folder, expected = indexed

    def without_values(tensors):
        split = with_split_keys_and_values(tensors, 4, 4)
        return {key: tensor for key, tensor in split.items() if "linear_v_up" not in key}

    with pytest.raises(PeriodicError, match=r"does not fill 3 tensors.*kv_b_proj"):
        assert_given_back(expected, folder, tmp_path, without_values)


def test_rows_that_two_tensors_hold_are_an_error(indexed, tmp_path):
    _, folder, expected = indexed

    def twice(tensors):
        return {**tensors, **with_split_keys_and_values(tensors, 4, 4)}

    with pytest.raises(PeriodicError, match=r"(?s)would be written to .*kv_b_proj.*linear_k_up"):
        assert_given_back(expected, folder, tmp_path, twice)


@pytest.mark.parametrize(
    ("fields", "own"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"indexer_types": ["full", "shared", "full"]}, [0, 2, 3, 4, 5]),
        ({"index_topk_pattern": "FSSFSS"}, [0, 3]),
        ({"index_topk_freq": 3}, [0, 1, 4]),
        ({"index_topk_freq": 2, "index_skip_topk_offset": 3}, [0, 1, 2, 4]),
        ({"index_topk_freq": 1, "index_skip_topk_offset": 0}, [0, 1, 2, 3, 4, 5]),
        ({"index_topk_freq": 0}, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_layers_with_an_indexer_are_those_of_the_config(fields, own, tmp_path):
    config = ModelConfig({"num_hidden_layers": 6, **fields}, tmp_path)
    assert indexed_layers(config) == own
    if "indexer_types" not in fields:
        types = AutoConfig.for_model("glm_moe_dsa", num_hidden_layers=6, **fields).indexer_types
        assert own == [number for number, kind in enumerate(types) if kind == "full"]


def test_every_family_but_gpt_oss_names_what_a_quantised_model_holds_in_blocks(written, tmp_path):
    name, folder, expected = written
    write_source(tmp_path / "source", expected, MODELS[name]["num_key_value_heads"])

    def convert():
        reshard(tmp_path / "source", tmp_path / "target", config=folder, quantize="fp8")

    if name.startswith("gpt_oss"):
        with pytest.raises(PeriodicError, match="(?s)names no matrices.*Leave --quantize out"):
            convert()
        return
    convert()
    found = load_file(tmp_path / "target" / "model.safetensors")
    in_blocks = {name for name in found if found[name].dtype == torch.float8_e4m3fn}
    matrices = {n for n in expected if re.search(r"(_proj|with_mqa|wq_b|wk)\.weight$", n)}
    assert in_blocks == {n for n in matrices if not n.endswith("weights_proj.weight")}
    assert all(found[f"{name}_scale_inv"].dtype == torch.float32 for name in in_blocks)


def test_every_family_has_a_model_here():
    here = {name.split()[0] for name in MODELS}
    assert all(here & set(family.model_types) for family in OURS)


def test_no_model_type_has_two_families():
    types = [model_type for family in OURS for model_type in family.model_types]
    assert len(types) == len(set(types))


def test_an_unknown_model_type_is_an_error_with_the_nearest_name():
    with pytest.raises(PeriodicError, match=r"(?s)'qwen4_moe'.*qwen3_moe"):
        family_of("qwen4_moe", OURS)


def test_a_package_can_bring_a_family(monkeypatch):
    class Point:
        @staticmethod
        def load():
            return (Family("acme", ("acme",), lambda config: []),)

    monkeypatch.setattr(known, "entry_points", lambda group: [Point] if "reshard" in group else [])
    assert family_of("acme", all_families()).name == "acme"


def test_two_families_for_one_model_type_are_an_error_that_names_both():
    other = Family("other", ("llama",), lambda config: [])
    with pytest.raises(PeriodicError, match=r"(?s)llama, other.*--model-type"):
        family_of("llama", (*(f for f in OURS if f.name == "llama"), other))
