"""Batches that hung or crashed other people's trainers, each named after the right behaviour."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_rules import arguments, parallel

from miles_periodic.compat.bindings import packing, packing_schedule
from miles_periodic.hooks import TrainBatch
from miles_periodic.hooks.alignment import zigzag_multiple
from miles_periodic.plugins.cost_aware_packing import CostModel, split
from miles_periodic.plugins.cost_aware_packing.feature import CostAwarePacking
from miles_periodic.plugins.cost_aware_packing.settings import CostAwarePackingSettings

ROOT = Path(__file__).parents[2]
MODEL = vars(arguments())


def planned(lengths, ranks, **rules):
    """What the feature answers for one optimizer step, as `[rank][slot]` of sample indices."""
    feature = CostAwarePacking(CostAwarePackingSettings(time_budget_seconds=0.0))
    batch = TrainBatch(
        lengths=lengths,
        data_parallel_size=ranks,
        global_batch_size=None,
        micro_batch_size=None,
        model=MODEL,
        step_of_sample=[0] * len(lengths),
        **rules,
    )
    return feature.split_train_batch(batch)


class TestTheCountOfMicroBatches:
    """verl#6176: each rank counted its own micro-batches, and the one with more waited for ever."""

    @given(
        lengths=st.lists(st.integers(1, 64), min_size=16, max_size=64),
        ranks=st.integers(2, 8),
        budget=st.sampled_from([0.0, 0.01]),
    )
    @settings(max_examples=60)
    def test_it_is_the_same_on_every_rank_without_a_word_between_them(self, lengths, ranks, budget):
        num_steps = 2 if len(lengths) % 2 == 0 and len(lengths) >= 32 else 1
        plan = split(
            lengths,
            ranks,
            cost=[float(length) ** 2 for length in lengths],
            global_batch_size=len(lengths) // num_steps,
            max_samples=3,
            max_tokens=192,
            time_budget=budget,
        )
        counts = [len(rank) for rank in plan.microbatches]
        assert counts == [sum(plan.slots_per_step)] * ranks

    def test_a_rank_of_one_long_sample_has_as_many_as_a_rank_of_short_ones(self):
        answer = planned([64] + [1] * 40, 2, max_tokens=64)
        assert [len(rank) for rank in answer.micro_batches] == [sum(answer.num_micro_batches)] * 2
        assert all(one for rank in answer.micro_batches for one in rank)


class TestTheUnitThatSamplesArePaddedTo:
    """miles#542: one place padded to a multiple of the wrong parallel size."""

    @pytest.mark.parametrize("context", [1, 2, 8])
    def test_the_cost_model_and_both_bindings_take_it_from_one_place(self, context, monkeypatch):
        expected = zigzag_multiple(context)
        assert CostModel.from_config(MODEL, context_parallel_size=context).pad_multiple == expected
        given_ = arguments(
            context_parallel_size=context,
            pipeline_model_parallel_size=1,
            global_batch_size=4,
            allgather_cp=False,
        )
        old = packing._batch(given_, {"tokens": [[0]] * 4}, num_ranks=2)
        monkeypatch.setattr(packing_schedule, "member", SimpleNamespace)
        new = packing_schedule._batch(
            given_, parallel(2, context=context), lengths=[1] * 4, steps=[0] * 4
        )
        assert old.length_multiple == new.length_multiple == expected

    @pytest.mark.parametrize("ranks", [1, 2, 8])
    def test_it_does_not_follow_the_number_of_data_parallel_ranks(self, ranks):
        batch = packing_schedule._batch(
            arguments(), parallel(ranks, context=4), lengths=[1] * 8, steps=[0] * 8
        )
        assert batch.length_multiple == 8

    def test_nothing_else_computes_one(self):
        """A product of 2 and a context-parallel size stands in one function of the package."""
        owners = [
            path.relative_to(ROOT).as_posix()
            for folder in ("hooks", "compat", "plugins", "cli")
            for path in sorted((ROOT / folder).rglob("*.py"))
            if any(map(_is_chunk_count, ast.walk(ast.parse(path.read_text()))))
        ]
        assert owners == ["hooks/alignment.py"]


def _is_chunk_count(node: ast.AST) -> bool:
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return False
    sides = [ast.unparse(side) for side in (node.left, node.right)]
    return "2" in sides and any("context_parallel" in s or "cp_size" in s for s in sides)


class TestASampleShorterThanItsChunks:
    """verl#4656: a sample of fewer tokens than twice the context-parallel ranks had no shape."""

    @given(lengths=st.lists(st.integers(1, 15), min_size=8, max_size=40))
    @settings(max_examples=60)
    def test_it_is_planned_and_counted_as_long_as_it_is_padded(self, lengths):
        answer = planned(lengths, 2, max_tokens=64, length_multiple=zigzag_multiple(8))
        for partition, rank in zip(answer.partitions, answer.micro_batches, strict=True):
            assert [position for one in rank for position in one] == list(range(len(partition)))
            assert all(16 * len(one) <= 64 for one in rank)

    def test_one_token_costs_what_its_chunks_cost(self):
        model = CostModel.from_config(MODEL, context_parallel_size=8)
        assert model.sample_costs([1]) == model.sample_costs([16])

    def test_a_cap_below_the_chunks_of_one_sample_leaves_it_alone(self):
        answer = planned([5] * 4, 2, max_tokens=12, length_multiple=zigzag_multiple(8))
        assert [len(one) for rank in answer.micro_batches for one in rank] == [1] * 4
