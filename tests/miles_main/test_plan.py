"""The plan on Miles at git main: every shape that the rollout's and the trainer's bindings need."""

import pytest

from miles_periodic.compat.plan import make_plan
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.decisions import Inject
from miles_periodic.plugins import features


@pytest.fixture(scope="module")
def decision(miles_tree):
    def decide(slug):
        trees = {"miles": Tree.at("miles", miles_tree)}
        rows = make_plan(features(), [slug], trees, environment={}).rows_of(slug)
        return next(row.decision for row in rows if row.upstream == "miles")

    return decide


def test_delta_router_replay_is_put_into_the_rollout_and_the_trainer(decision):
    found = decision("delta-router-replay")
    assert isinstance(found, Inject), found
    assert {"rollout/routed-experts-of-tokens", "training/replay-fill"} <= set(found.bindings)


def test_cost_aware_packing_plans_where_miles_plans(decision):
    found = decision("cost-aware-packing")
    assert isinstance(found, Inject), found
    own = {name for name in found.bindings if name.startswith("training/")}
    assert own == {"training/schedule", "training/unplanned-split"}


def test_kv_preservation_finds_its_rollout_there(decision):
    found = decision("kv-preservation")
    assert isinstance(found, Inject), found
    assert {"rollout/scope", "rollout/refactored-scope", "rollout/request"} <= set(found.bindings)


def test_kv_preservation_keeps_kv_through_every_updater_there(decision):
    bindings = decision("kv-preservation").bindings
    assert {"weights/colocated", "weights/fsdp", "weights/request", "weights/pause"} <= set(
        bindings
    )
    assert "rollout/main-logged-step" in bindings
