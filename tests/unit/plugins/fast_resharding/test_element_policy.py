"""Which element type each target has, and which none may have."""

import json

import pytest
import torch
from megatron_states import sources
from safetensors.torch import save_file
from small_models import refused, same, state, written

from miles_periodic.cli.bench.torch_dist_writer import TorchDistWriter
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding import reshard
from miles_periodic.plugins.fast_resharding.element_types import ELEMENT_TYPES
from miles_periodic.plugins.fast_resharding.families.table import Family, whole

WEIGHTS = {"float64", "float32", "float16", "bfloat16"}
NORM = "decoder.final_layernorm.weight"


@pytest.mark.parametrize("dtype", sorted({*ELEMENT_TYPES, "torch.float8_e5m2"} - WEIGHTS))
@pytest.mark.parametrize("quantize", [None, "fp8"])
def test_a_type_that_needs_scales_is_refused_before_anything_is_read(dtype, quantize, tmp_path):
    with pytest.raises(PeriodicError, match="(?s)no model that can be loaded.*--quantize fp8"):
        reshard(
            tmp_path / "no source",
            tmp_path / "target",
            config=tmp_path / "no model",
            dtype=dtype,
            quantize=quantize,
        )


def test_a_quantisation_that_is_given_as_a_type_is_refused_with_its_option(tmp_path):
    with pytest.raises(PeriodicError, match="(?s)no element type.*--quantize fp8"):
        reshard(tmp_path / "no source", tmp_path / "target", config=tmp_path, dtype="fp8")


def test_an_unknown_quantisation_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(PeriodicError, match="(?s)No quantisation is named 'fp9'.*fp8"):
        reshard(tmp_path / "no source", tmp_path / "target", config=tmp_path, quantize="fp9")


@pytest.mark.parametrize("dtype", sorted(WEIGHTS))
def test_a_type_of_weights_is_taken(dtype, source, model_folder, target):
    reshard(source, target, config=model_folder, dtype=dtype)
    assert {str(tensor.dtype) for tensor in written(target).values()} == {f"torch.{dtype}"}


@pytest.mark.parametrize("dtype", ["origin", "source", "bfloat16"])
def test_a_matrix_that_is_stored_without_its_scales_is_refused(
    dtype, tmp_path, config, model_folder, target
):
    """Its values over scales that nobody knows would be taken for weights."""
    tensors = dict(sources(state(config), groups=2))
    key = "decoder.layers.0.self_attention.linear_proj.weight"
    tensors[key] = tensors[key].to(torch.float8_e4m3fn)
    write(tmp_path / "source", tensors)
    named = r"(?s)o_proj\.weight is stored as float8_e4m3fn.*plain weights"
    refused(named, tmp_path / "source", target, model_folder, dtype=dtype)


@pytest.mark.parametrize("word", ["float8_e4m3fn", "int8"])
def test_a_config_of_a_type_that_needs_scales_is_refused(
    word, source, config, model_folder, target
):
    (model_folder / "config.json").write_text(json.dumps({**config, "dtype": word}))
    refused(f"(?s)would be written as {word}.*--dtype", source, target, model_folder)


def test_an_origin_of_whole_numbers_is_refused_and_dtype_is_the_way_out(
    source, expected, model_folder, target
):
    whole_numbers = {name: tensor.to(torch.int8) for name, tensor in expected.items()}
    save_file(whole_numbers, model_folder / "model.safetensors")
    refused("(?s)would be written as int8.*--dtype", source, target, model_folder)
    reshard(source, target, config=model_folder, dtype="bfloat16")
    assert same(written(target), expected)


def test_an_origin_of_whole_numbers_with_scales_says_no_types(
    source, expected, model_folder, target
):
    """Of a model that was quantised so, as of one in FP8, the config says the type."""
    quantised = {
        each: tensor
        for name, weight in expected.items()
        for each, tensor in ((name, weight.to(torch.int8)), (f"{name}_scale", torch.ones(1)))
    }
    save_file(quantised, model_folder / "model.safetensors")
    reshard(source, target, config=model_folder)
    assert same(written(target), expected)


def test_a_tensor_of_whole_numbers_is_written_where_the_family_says_so(
    tmp_path, model_folder, target
):
    numbers = torch.arange(8)
    write(tmp_path / "source", {NORM: numbers})
    family = Family("own", ("qwen3_moe",), lambda config: [whole(NORM, "n", 8, element="int64")])
    reshard(tmp_path / "source", target, config=model_folder, families=[family])
    assert torch.equal(written(target)["n"], numbers)


def write(folder, tensors):
    with TorchDistWriter(folder) as writer:
        for key, tensor in tensors.items():
            writer.add(key, tensor)
