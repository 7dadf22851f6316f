"""Parameter names of Megatron's local spec, in Transformer Engine's words."""

import pytest
from miles_periodic.compat.cpu.megatron_local_spec import grouped_name

LAYER = "module.module.decoder.layers.2."


@pytest.mark.parametrize(
    ("local", "first_expert", "grouped"),
    [
        ("mlp.experts.local_experts.1.linear_fc1.weight", 0, "mlp.experts.linear_fc1.weight1"),
        ("mlp.experts.local_experts.1.linear_fc2.weight", 4, "mlp.experts.linear_fc2.weight5"),
        ("input_layernorm.weight", 4, "self_attention.linear_qkv.layer_norm_weight"),
        ("pre_mlp_layernorm.weight", 4, "pre_mlp_layernorm.weight"),
        ("self_attention.linear_qkv.weight", 4, "self_attention.linear_qkv.weight"),
    ],
)
def test_a_name_is_renamed_with_the_experts_global_number(local, first_expert, grouped):
    assert grouped_name(LAYER + local, first_expert) == LAYER + grouped
