"""What goes into a tree's sources: a target that drifted is not what upstream does by itself."""

import pytest

from miles_periodic.compat.patched import Drift, Nothing, points_of
from miles_periodic.compat.tree import Tree
from miles_periodic.plugins.cost_aware_packing.feature import CostAwarePacking

LOOP = """
def get_forward_backward_func():
    return forward_backward_no_pipelining


def forward_backward_no_pipelining(*, data_iterator, num_microbatches):
    for _ in range(num_microbatches):
        next(data_iterator)
"""
SCHEDULE = "core/datasets/data_schedule.py"
TARGET = "megatron.core.datasets.data_schedule:DpBalancedScheduler.get_groups_and_subsamples"
OTHER_BODY = """
class DpBalancedScheduler:
    def get_groups_and_subsamples(self, sample_id_seqlens):
        return None
"""


@pytest.fixture
def tree(tmp_path):
    """`tree(schedule)`: a Megatron whose loop takes Miles's micro-batches, with that scheduler."""

    def made(schedule):
        files = {"core/pipeline_parallel/schedules.py": LOOP, SCHEDULE: schedule}
        for path in ("__init__.py", "core/__init__.py", *files):
            (tmp_path / "megatron" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "megatron" / path).write_text(files.get(path, ""))
        return Tree.at("megatron", tmp_path)

    return made


def test_without_a_scheduler_of_its_own_nothing_is_to_be_patched(tree):
    found = points_of(CostAwarePacking, tree("groups = []\n"), ())
    assert isinstance(found, Nothing) and found.reason.startswith("native: ")


@pytest.mark.parametrize(
    ("schedule", "found"),
    [
        (OTHER_BODY, "(self, sample_id_seqlens) "),
        (OTHER_BODY.replace("sample_id", "id"), "(self, id_seqlens) "),
        (OTHER_BODY.replace("get_groups", "get_all_groups"), "no such definition"),
    ],
    ids=["body", "signature", "gone from its class"],
)
def test_a_scheduler_of_another_shape_is_in_conflict_and_not_native(tree, schedule, found):
    drift = points_of(CostAwarePacking, tree(schedule), ())
    assert isinstance(drift, Drift)
    assert (drift.file, drift.target) == (f"megatron/{SCHEDULE}", TARGET)
    assert drift.found.startswith(found) and drift.remedy.startswith("Use a tree whose shape")
