from __future__ import annotations

import numpy as np
import pytest

from miles_periodic.plugins.cost_aware_packing.cost_model import (
    AttentionTerm,
    CostModel,
    MeasuredMicroBatch,
    MeasuredStep,
)

DENSE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "vocab_size": 1000,
}


@pytest.mark.parametrize("window", [None, 1, 3, 100])
def test_pairs_are_those_that_a_causal_mask_leaves(window):
    length, reach = 7, window or 7
    counted = sum(1 for i in range(length) for j in range(length) if i - reach < j <= i)
    assert AttentionTerm(1.0, window).pairs(np.array([7.0])).tolist() == [counted]


def test_a_sample_costs_its_tokens_and_its_pairs():
    model = CostModel(linear=10.0, attention=(AttentionTerm(2.0),))
    assert model.sample_costs([1, 3]).tolist() == [12.0, 42.0]


def test_lengths_are_padded_before_they_are_counted():
    model = CostModel(linear=1.0, pad_multiple=8)
    assert model.sample_costs([1, 8, 9]).tolist() == [8.0, 8.0, 16.0]


def test_a_config_gives_forward_and_backward_flops():
    model = CostModel.from_config(DENSE)
    weights = 2 * (4 * 64 * 64 + 3 * 64 * 256) + 64 * 1000
    assert model.linear == 6 * weights
    assert model.attention == (AttentionTerm(3.5 * 2 * 4 * 64),)


def test_recomputation_adds_one_forward():
    plain, again = CostModel.from_config(DENSE), CostModel.from_config(DENSE, recompute=True)
    assert again.linear == pytest.approx(plain.linear * 4 / 3)
    assert again.attention[0].flops_per_pair == pytest.approx(
        plain.attention[0].flops_per_pair * 4.5 / 3.5
    )


LATENT = {
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
SPARSE = {"index_topk": 5, "index_n_heads": 2, "index_head_dim": 4}


def test_a_sparse_model_pays_pairs_up_to_its_keys_and_its_indexer_for_all():
    model = CostModel.from_config({**DENSE, **LATENT, **SPARSE})
    chosen, indexer = model.attention
    assert chosen == AttentionTerm(3.5 * 2 * 2 * 4 * (40 + 32), window=5)
    assert indexer == AttentionTerm(2 * 2 * 2 * 4)


def test_an_indexer_with_a_loss_has_a_backward_and_a_target():
    sparse = {**DENSE, **LATENT, **SPARSE}
    without = CostModel.from_config(sparse)
    trained = CostModel.from_config({**sparse, "dsa_indexer_loss_coeff": 0.1})
    assert trained.linear > without.linear
    assert trained.attention[1] == AttentionTerm(2 * (3 * 2 * 2 * 4 + 2 * 4 * 24))


def test_context_parallel_ranks_share_a_sample_and_pad_it_to_their_chunks():
    alone = CostModel.from_config(DENSE)
    shared = CostModel.from_config(DENSE, context_parallel_size=4)
    assert shared.padded_lengths([1, 8, 9]).tolist() == [8, 8, 16]
    assert shared.sample_costs([8]) == pytest.approx(alone.sample_costs([8]) / 4)


def test_a_padding_that_is_given_is_the_one_that_counts():
    model = CostModel.from_config(DENSE, context_parallel_size=4, pad_multiple=1)
    assert model.padded_lengths([1, 9]).tolist() == [1, 9]


def test_a_measured_step_is_that_of_the_dearest_micro_batch_of_each_slot():
    microbatches = [[(0,), (1, 2)], [(3,), (4,)]]
    step = MeasuredStep.from_micro_batches(
        microbatches, [5, 2, 3, 9, 1], cost=[5, 2, 3, 9, 1], seconds=2.0
    )
    assert step == MeasuredStep(((9,), (2, 3)), 2.0)


def test_a_fit_to_steps_recovers_the_seconds_of_a_machine():
    model = CostModel(linear=1.0, attention=(AttentionTerm(1.0),))
    machine = CostModel(2.0, (AttentionTerm(0.5),), per_micro_batch=30.0)
    plans = [((8,) * 9, (4, 4)), ((50,), (2,), (3,)), ((100,),), ((10, 20), (30,)), ((1,),) * 7]
    measured = [
        MeasuredStep(slots, sum(machine.micro_batch_cost(slot) for slot in slots))
        for slots in plans
    ]
    fitted = model.fit(measured)
    assert fitted.micro_batch_cost((70, 5)) == pytest.approx(machine.micro_batch_cost((70, 5)))


def test_a_fit_recovers_the_seconds_of_a_machine():
    model = CostModel.from_config(DENSE)
    machine = CostModel(
        linear=model.linear * 1e-9,
        attention=(AttentionTerm(model.attention[0].flops_per_pair * 3e-9),),
        per_micro_batch=0.002,
    )
    measured = [
        MeasuredMicroBatch(lengths, machine.micro_batch_cost(lengths))
        for lengths in [(8,) * 64, (512,), (4096,), (300, 200, 100), (2048, 8)]
    ]
    fitted = model.fit(measured)
    assert fitted.unit == "seconds"
    assert fitted.micro_batch_cost((1000, 50)) == pytest.approx(
        machine.micro_batch_cost((1000, 50))
    )


def test_a_fit_never_gives_a_negative_part():
    model = CostModel(linear=1.0, attention=(AttentionTerm(1.0),))
    flattening = [MeasuredMicroBatch((n,), n**0.5) for n in (1, 4, 16, 64, 256)]
    fitted = model.fit(flattening)
    assert fitted.linear > 0 and fitted.per_micro_batch >= 0
    assert fitted.attention[0].flops_per_pair >= 0


@pytest.mark.parametrize(
    ("measured", "remedy"),
    [
        ([MeasuredMicroBatch((5,), 1.0)] * 2, "pass 3 or more"),
        ([MeasuredMicroBatch((5,), 0.0)] * 3, "drop it"),
        ([MeasuredMicroBatch((), 1.0)] * 3, "drop it"),
    ],
)
def test_measurements_that_say_nothing_are_refused_with_the_remedy(measured, remedy):
    with pytest.raises(ValueError, match=remedy):
        CostModel(linear=1.0).fit(measured)


def test_times_that_do_not_grow_with_length_are_refused_with_the_remedy():
    constant = [MeasuredMicroBatch((length,), 1.0) for length in (1, 10, 100, 1000)]
    with pytest.raises(ValueError, match="measure some with few long samples"):
        CostModel(linear=1.0).fit(constant)
