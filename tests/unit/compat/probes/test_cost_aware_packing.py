"""The probe on small trees: who plans micro-batches, and whether anything takes the plan."""

from __future__ import annotations

from textwrap import dedent

import pytest

from miles_periodic.compat.plan import make_plan
from miles_periodic.compat.probes import PROBES
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks import Inject, Native, Unsupported
from miles_periodic.plugins import features

SCHEDULES = "core/pipeline_parallel/schedules.py"
DATA = "core/datasets/data_schedule.py"
LOOP = """
    def get_forward_backward_func():
        return forward_backward_no_pipelining

    def forward_backward_no_pipelining(*, data_iterator, num_microbatches):
        for _ in range(num_microbatches):
            next(data_iterator)
    """
PACKER = """
    class DpBalancedScheduler:
        def get_groups_and_subsamples(self, sample_id_seqlens):
            return [sample_id_seqlens]

    def wrap_data_iterator(data_iterator, config, num_microbatches):
        return DpBalancedScheduler()
    """
CALLER = """
    def train_step(data_iterator, config):
        return wrap_data_iterator(data_iterator, config, 1)
    """
HYBRID = {
    "core/pipeline_parallel/hybrid_cp_schedule.py": "class BalancedCPScheduler:\n    pass\n",
    DATA: """
        class HybridCPDataLoaderWrapper:
            def __init__(self):
                self.scheduler = BalancedCPScheduler()
        """,
}
SCHEDULE = {
    "utils/dp_schedule.py": """
        def build_dp_schedule(args, train_parallel_config, total_lengths):
            bins = first_fit_decreasing_pack(total_lengths, args.max_tokens_per_gpu)
            return bins, bins, [1], [1]
        """,
    "ray/rollout/train_data_conversion.py": """
        def split_scheduled(args, data):
            return build_dp_schedule(args, {}, data)
        """,
    "backends/training_utils/data.py": """
        def get_data_iterator(args, model, rollout_data):
            return rollout_data["micro_batch_indices"]
        """,
}


@pytest.fixture
def probed(tmp_path):
    def probe(upstream, sources):
        for path, text in sources.items():
            file = tmp_path / upstream / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(dedent(text))
        return PROBES["cost-aware-packing"][upstream](Tree.at(upstream, tmp_path / upstream))

    return probe


def seen(decision) -> str:
    return "\n".join(map(str, decision.evidence))


def test_megatrons_scheduler_that_its_training_loop_calls_is_named_with_the_call(probed):
    tree = {SCHEDULES: LOOP, DATA: PACKER, "training/training.py": CALLER}
    decision = probed("megatron", tree)
    assert isinstance(decision, Native)
    assert "DpBalancedScheduler packs for Megatron's own training loop" in decision.reason
    assert "training/training.py:3: train_step calls wrap_data_iterator" in seen(decision)


def test_megatrons_scheduler_that_nothing_calls_is_inert(probed):
    decision = probed("megatron", {SCHEDULES: LOOP, DATA: PACKER})
    assert isinstance(decision, Native)
    assert "DpBalancedScheduler is inert" in decision.reason
    assert "nothing calls wrap_data_iterator" in seen(decision)


def test_a_scheduler_of_context_parallel_sizes_is_not_on_the_path(probed):
    decision = probed("megatron", {SCHEDULES: LOOP, **HYBRID})
    assert isinstance(decision, Native)
    assert "BalancedCPScheduler serves --hybrid-context-parallel alone" in decision.reason
    assert "HybridCPDataLoaderWrapper.__init__ calls BalancedCPScheduler" in seen(decision)


def test_a_megatron_without_schedulers_says_so(probed):
    assert "no packing scheduler of its own" in probed("megatron", {SCHEDULES: LOOP}).reason


def test_a_schedule_that_is_taken_and_trained_by_is_where_ours_goes_in(probed):
    decision = probed("miles", SCHEDULE)
    assert isinstance(decision, Inject)
    assert "first_fit_decreasing_pack(total_lengths" in seen(decision)
    assert "split_scheduled takes the schedule" in seen(decision)
    assert "get_data_iterator takes micro_batch_indices" in seen(decision)


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("ray/rollout/train_data_conversion.py", "", "nothing that takes its schedule"),
        ("backends/training_utils/data.py", "", "no use of micro_batch_indices"),
        (
            "backends/training_utils/data.py",
            "def get_data_iterator(args, model, rollout_data):\n    return rollout_data\n",
            "no use of micro_batch_indices",
        ),
        (
            "utils/dp_schedule.py",
            "def build_dp_schedule(args):\n    return plan_by_cost(args)\n",
            "neither first fit nor a balance of token counts",
        ),
    ],
)
def test_a_schedule_that_is_not_as_we_know_it_is_unsupported_by_name(probed, path, text, found):
    decision = probed("miles", {**SCHEDULE, path: text})
    assert isinstance(decision, Unsupported)
    assert found in decision.found and "-cost-aware-packing" in decision.remedy


def planned(tree, **settings):
    kind = next(f for f in features() if f.slug == "cost-aware-packing")
    chosen = {kind.slug: kind.settings_model(**settings)}
    rows = make_plan(
        features(), [kind.slug], {"megatron": tree}, environment={}, settings=chosen
    ).rows_of(kind.slug)
    return next(row.decision for row in rows if row.upstream == "megatron")


def test_megatrons_scheduler_in_an_unknown_form_costs_the_feature_only_where_it_is_asked(
    probed, tmp_path
):
    probed("megatron", {SCHEDULES: LOOP, DATA: PACKER, "training/training.py": CALLER})
    tree = Tree.at("megatron", tmp_path / "megatron")
    assert isinstance(planned(tree), Native)
    assert isinstance(planned(tree, megatron_scheduler=True), Unsupported)
    assert isinstance(planned(tree, megatron_scheduler=False), Native)
