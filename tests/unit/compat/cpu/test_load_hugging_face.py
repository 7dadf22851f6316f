"""Hugging Face weights under the names of Megatron's local spec."""

import pytest

torch = pytest.importorskip("torch")

from miles_periodic.compat.cpu.load_hugging_face import HuggingFaceWeights, read_tensors  # noqa: E402
from miles_periodic.compat.cpu.tiny_model import TinyModel, tensor_shapes  # noqa: E402
from miles_periodic.hooks.errors import PeriodicError  # noqa: E402

MODEL = TinyModel()
LAYER = "decoder.layers.1."


@pytest.fixture(scope="module")
def tensors():
    return {name: torch.randn(shape) for name, shape in tensor_shapes(MODEL)}


@pytest.fixture
def weights(tensors):
    return HuggingFaceWeights(
        tensors,
        num_query_groups=MODEL.num_key_value_heads,
        head_size=MODEL.head_dim,
        first_expert=4,
    )


def test_a_local_expert_is_counted_from_the_ranks_first(weights, tensors):
    down = weights[f"{LAYER}mlp.experts.local_experts.1.linear_fc2.weight"]
    assert torch.equal(down, tensors["model.layers.1.mlp.experts.5.down_proj.weight"])


def test_the_first_linear_of_an_expert_is_gate_over_up(weights, tensors):
    both = weights[f"{LAYER}mlp.experts.local_experts.0.linear_fc1.weight"]
    gate, up = both.chunk(2)
    assert torch.equal(gate, tensors["model.layers.1.mlp.experts.4.gate_proj.weight"])
    assert torch.equal(up, tensors["model.layers.1.mlp.experts.4.up_proj.weight"])


def test_queries_keys_and_values_are_interleaved_by_group(weights, tensors):
    mixed = weights[f"{LAYER}self_attention.linear_qkv.weight"]
    by_group = mixed.view(MODEL.num_key_value_heads, -1, MODEL.head_dim, MODEL.hidden_size)
    keys = tensors["model.layers.1.self_attn.k_proj.weight"]
    assert torch.equal(by_group[:, -2].reshape(keys.shape), keys)


def test_an_unknown_parameter_is_an_error_with_its_name(weights):
    with pytest.raises(PeriodicError, match=r"decoder\.layers\.1\.mlp\.shared_experts"):
        weights[f"{LAYER}mlp.shared_experts.linear_fc1.weight"]


def test_a_folder_without_weights_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(PeriodicError, match="Write the tiny model"):
        read_tensors(tmp_path)
