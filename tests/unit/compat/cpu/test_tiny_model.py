"""The tiny model: the same bytes every time, and a shape that its parts agree on."""

import hashlib
import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from miles_periodic.compat.cpu import tiny_model
from miles_periodic.compat.cpu.tiny_model import TinyModel


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_model.write(folder)
    return folder


def digests(folder):
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in folder.iterdir()}


def test_two_models_are_the_same_bytes(folder, tmp_path):
    tiny_model.write(tmp_path)
    assert digests(tmp_path) == digests(folder)


def test_another_seed_gives_other_weights(folder, tmp_path):
    tiny_model.write(tmp_path, seed=1)
    changed = {name for name in digests(folder) if digests(folder)[name] != digests(tmp_path)[name]}
    assert changed == {"model.safetensors"}


def test_the_config_names_the_model_that_upstream_knows(folder):
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["Qwen3MoeForCausalLM"]
    assert (config["num_experts"], config["num_experts_per_tok"]) == (8, 2)


def test_weights_are_bfloat16_and_norms_are_one(folder):
    import torch
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert bool((tensors["model.norm.weight"] == 1).all())


def test_every_layer_has_every_expert():
    names = [name for name, _ in tiny_model.tensor_shapes(TinyModel())]
    experts = [name for name in names if name.endswith("down_proj.weight")]
    assert len(experts) == TinyModel.num_hidden_layers * TinyModel.num_experts
    assert len(names) == len(set(names))


def test_the_tokenizer_gives_any_text_back(folder):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = "The calculator says −42 …\n"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_tokenizer_fits_into_the_models_vocabulary(folder):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.get_vocab_size() <= TinyModel.vocab_size
