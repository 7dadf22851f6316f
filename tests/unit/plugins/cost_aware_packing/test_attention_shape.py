from __future__ import annotations

import pytest

from miles_periodic.plugins.cost_aware_packing.attention_shape import AttentionShape, Indexer
from miles_periodic.plugins.cost_aware_packing.config_fields import ConfigFields

GROUPED = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
LATENT = {
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
SPARSE = {"index_topk": 5, "index_n_heads": 2, "index_head_dim": 4}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 3,
}


def shape_of(**changes) -> AttentionShape:
    return AttentionShape.from_fields(ConfigFields({**GROUPED, **changes}))


def test_grouped_attention_has_fewer_key_value_projections():
    shape = shape_of()
    assert shape.projection_per_token == 2 * 64 * 16 * (8 + 2 * 2 + 8)
    assert shape.per_pair == 2 * 8 * (16 + 16)


def test_megatrons_query_groups_count_only_when_they_are_on():
    assert shape_of(group_query_attention=False).projection_per_token == 2 * 64 * 16 * 8 * 4


def test_latent_attention_goes_through_its_ranks():
    shape = shape_of(**LATENT)
    query = 48 * (64 + 8 * 24)
    key_value = 64 * (32 + 8) + 32 * 8 * (16 + 12)
    assert shape.projection_per_token == 2 * (query + key_value + 8 * 12 * 64)
    assert shape.per_pair == 2 * 8 * (24 + 12)


def test_latent_attention_without_a_query_rank_projects_queries_at_once():
    change = shape_of(**LATENT, **{}).projection_per_token
    plain = shape_of(**{**LATENT, "q_lora_rank": None}).projection_per_token
    assert plain - change == 2 * (64 * 8 * 24 - 48 * (64 + 8 * 24))


def test_sparse_latent_attention_reads_the_latent_itself():
    shape = shape_of(**LATENT, **SPARSE)
    assert shape.flops_per_pair() == {5: 4 * 2 * 8 * ((32 + 8) + 32)}


def test_sparse_attention_pays_for_its_indexer():
    assert shape_of(**LATENT, **SPARSE).indexer == Indexer(
        num_layers=4, per_token=2 * (48 * 2 * 4 + 64 * (4 + 2)), per_pair=2 * 2 * 4
    )


@pytest.mark.parametrize(
    ("skips", "num_layers"),
    [
        ({}, 4),
        ({"dsa_indexer_topk_freq": 2}, 2),
        ({"dsa_indexer_topk_freq": 4}, 1),
        ({"dsa_indexer_topk_freq": 2, "dsa_indexer_skip_topk_offset": 3}, 3),
    ],
)
def test_layers_that_take_over_a_choice_of_keys_have_no_indexer(skips, num_layers):
    assert shape_of(**LATENT, **SPARSE, **skips).indexer.num_layers == num_layers


@pytest.mark.parametrize(
    ("loss", "is_trained", "target"),
    [
        ({}, False, 0),
        ({"dsa_indexer_loss_coeff": 0.0}, False, 0),
        ({"dsa_indexer_loss_coeff": 0.1}, True, 2 * 8 * 24),
        ({"dsa_indexer_loss_coeff": 0.1, "dsa_indexer_use_sparse_loss": True}, True, 0),
    ],
)
def test_an_indexer_is_trained_where_it_has_a_loss(loss, is_trained, target):
    indexer = shape_of(**LATENT, **SPARSE, **loss).indexer
    assert (indexer.is_trained, indexer.target_per_pair) == (is_trained, target)


@pytest.mark.parametrize(
    ("pattern", "windows"),
    [
        ({}, (None,) * 4),
        ({"sliding_window": 9}, (9,) * 4),
        ({"sliding_window": 9, "use_sliding_window": False}, (None,) * 4),
        (
            {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 3},
            (None, None, None, 9),
        ),
        ({"sliding_window": 9, "sliding_window_pattern": 2}, (9, None, 9, None)),
        (
            {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"] * 2},
            (9, None, 9, None),
        ),
        ({"sliding_window": 0}, (None,) * 4),
        ({"sliding_window": -1}, (None,) * 4),
        ({"window_size": (-1, -1)}, (None,) * 4),
        ({"window_size": (-1, 0), "window_attn_skip_freq": 2}, (None,) * 4),
        ({"window_size": (8, 0)}, (9,) * 4),
        ({"window_size": (8, 0), "window_attn_skip_freq": 2}, (9, None, 9, None)),
        ({"window_size": (8, 0), "window_attn_skip_freq": [0, 1, 1, 0]}, (None, 9, 9, None)),
    ],
)
def test_windows_are_those_of_each_layer(pattern, windows):
    assert shape_of(**pattern).windows == windows


def test_kinds_of_another_number_of_layers_are_refused():
    with pytest.raises(ValueError, match="layer_types has 1 entries for 4 layers"):
        shape_of(layer_types=["full_attention"])


@pytest.mark.parametrize(
    ("pattern", "num_linear"),
    [
        ({"layer_types": ["linear_attention"] * 3 + ["full_attention"]}, 3),
        ({"full_attention_interval": 4}, 3),
        ({"experimental_attention_variant": "gated_delta_net", "linear_attention_freq": 2}, 2),
        (
            {
                "experimental_attention_variant": "gated_delta_net",
                "linear_attention_freq": [1, 1, 1, 0],
            },
            3,
        ),
        ({"linear_attention_freq": 2}, 0),
    ],
)
def test_layers_of_linear_attention_cost_no_pairs(pattern, num_linear):
    shape = shape_of(**DELTA, **pattern)
    assert (shape.num_linear_layers, len(shape.windows)) == (num_linear, 4 - num_linear)


def test_a_layer_of_linear_attention_costs_its_projections_and_its_state():
    shape = shape_of(**DELTA, layer_types=["linear_attention"] * 4)
    keys, values = 2 * 8, 4 * 16
    projections = 64 * (2 * keys + 2 * values + 2 * 4 + values)
    assert shape.flops_per_token() == 4 * 2 * (
        projections + 3 * (2 * keys + values) + 4 * 4 * 8 * 16
    )


def test_mixed_layers_are_counted_kind_by_kind():
    kinds = ["linear_attention", "sliding_attention", "full_attention", "sliding_attention"]
    shape = shape_of(**DELTA, layer_types=kinds, sliding_window=9)
    assert shape.flops_per_pair() == {9: 2 * shape.per_pair, None: shape.per_pair}
    assert shape.flops_per_token() == 3 * shape.projection_per_token + shape.linear_per_token
