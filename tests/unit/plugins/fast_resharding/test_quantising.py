"""FP8 in blocks: what comes back of a matrix, and models that transformers itself loads."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron_states import write_source
from small_models import CONFIG, state, written
from transformers import AutoModelForCausalLM

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding import reshard
from miles_periodic.plugins.fast_resharding.quantising import BLOCK, num_blocks, quantise

#: Its matrices have several blocks, and last ones that are smaller.
LARGER = {**CONFIG, "hidden_size": 160, "moe_intermediate_size": 136, "head_dim": 40}
WHOLE_BLOCKS = {**CONFIG, "hidden_size": 256, "moe_intermediate_size": 128, "head_dim": 64}
PLAIN = ("embed_tokens", "lm_head", "norm", "mlp.gate.")


def restored(matrix, scales):
    """FP32: the matrix times its scales, by plain torch."""
    spread = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return matrix.float() * spread[: matrix.shape[0], : matrix.shape[1]]


def assert_near(found, scales, expected):
    spread = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    spread = spread[: expected.shape[0], : expected.shape[1]]
    bound = torch.maximum(expected.abs() / 16, spread / 1024) * 1.001
    assert bool(((found - expected).abs() <= bound).all())


@settings(max_examples=40)
@given(
    rows=st.integers(1, 300),
    columns=st.integers(1, 300),
    exponent=st.integers(-20, 20),
    seed=st.integers(0, 99),
)
def test_every_value_comes_back_within_its_bound(rows, columns, exponent, seed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, columns, generator=generator) * 2.0**exponent
    out = torch.from_numpy(quantise(values, "m"))
    matrix = out[: rows * columns].view(torch.float8_e4m3fn).view(rows, columns)
    scales = out[rows * columns :].clone().view(torch.float32).view(num_blocks(rows, columns))
    assert_near(restored(matrix, scales), scales, values)


def test_a_block_of_zeros_stays_one():
    out = torch.from_numpy(quantise(torch.zeros(2, 3, dtype=torch.bfloat16), "m"))
    assert out[:6].tolist() == [0] * 6 and out[6:].clone().view(torch.float32).tolist() == [1.0]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_named_instead_of_spoiling_its_block(value):
    with pytest.raises(PeriodicError, match=r"(?s)experts\.3 holds values.*--quantize"):
        quantise(torch.tensor([[1.0, value]]), "experts.3")


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """The folder of a quantised model in several shards, and what it was made of."""
    folder = tmp_path_factory.mktemp("quantised")
    before = state(LARGER)
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(LARGER))
    write_source(folder / "source", before, groups=2)
    reshard(
        folder / "source",
        folder / "target",
        config=folder / "model",
        quantize="fp8",
        verify=True,
        unit_bytes=1,
        shard_bytes=100_000,
    )
    return folder / "target", before


def test_each_matrix_has_its_scales_beside_it_and_everything_else_is_plain(converted):
    target, before = converted
    found = written(target)
    for name, expected in before.items():
        if any(word in name for word in PLAIN):
            assert torch.equal(found.pop(name), expected), name
            continue
        matrix, scales = found.pop(name), found.pop(f"{name}_scale_inv")
        assert (matrix.dtype, scales.dtype) == (torch.float8_e4m3fn, torch.float32)
        assert tuple(scales.shape) == num_blocks(*expected.shape)
        assert_near(restored(matrix, scales), scales, expected.float())
    assert not found


def test_scales_lie_in_the_file_of_their_matrix(converted):
    index = json.loads((converted[0] / "model.safetensors.index.json").read_text())["weight_map"]
    scaled = [name for name in index if name.endswith("_scale_inv")]
    assert scaled and all(index[n] == index[n.removesuffix("_scale_inv")] for n in scaled)


def test_the_config_says_how_the_model_is_quantised_and_what_the_rest_is(converted):
    config = json.loads((converted[0] / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    assert config["quantization_config"] == {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }


@pytest.mark.filterwarnings("ignore")
def test_transformers_restores_what_was_written(tmp_path):
    """On a CPU it does so for whole blocks only: it takes their size from the scales' shape."""
    (tmp_path / "config.json").write_text(json.dumps(WHOLE_BLOCKS))
    write_source(tmp_path / "source", state(WHOLE_BLOCKS), groups=2)
    models = []
    for scheme in (None, "fp8"):
        target = tmp_path / f"target-{scheme}"
        reshard(tmp_path / "source", target, config=tmp_path, quantize=scheme)
        loaded, info = AutoModelForCausalLM.from_pretrained(
            target, output_loading_info=True, dtype=torch.float32
        )
        assert not any(info.values()), info
        models.append(loaded.state_dict())
    plain, quantised = models
    assert plain.keys() == quantised.keys()
    for name, expected in plain.items():
        assert ((quantised[name] - expected).abs() <= expected.abs() / 16 + 1e-4).all(), name
    assert any(not torch.equal(quantised[name], plain[name]) for name in plain)


def test_an_unknown_scheme_is_an_error_with_the_nearest_name(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    write_source(tmp_path / "source", state(CONFIG), groups=2)
    with pytest.raises(PeriodicError, match="(?s)'fp88'.*fp8"):
        reshard(tmp_path / "source", tmp_path / "target", config=tmp_path, quantize="fp88")
    assert not (tmp_path / "target").exists()
