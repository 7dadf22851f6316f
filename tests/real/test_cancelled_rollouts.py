"""Rollouts that grow too old in flight, in Miles's own code, through its router, on a server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from becoming import becomes
from weight_updates import serving

from miles_periodic.compat.catalog import bindings_named
from miles_periodic.compat.cpu.environment import cpu_environment
from miles_periodic.compat.cpu.miles_router import MilesRouterProcess, RouterSetup
from miles_periodic.compat.manifest import FeatureReference, RunManifest
from miles_periodic.compat.plan import make_plan
from miles_periodic.compat.roll_call.server import RollCallServer
from miles_periodic.compat.tree import Tree
from miles_periodic.plugins import features
from miles_periodic.plugins.kv_preservation.feature import KVPreservation
from miles_periodic.plugins.kv_preservation.settings import KVPreservationSettings

pytestmark = pytest.mark.real

HERE = Path(__file__).parent
SETTINGS = KVPreservationSettings(max_off_policy_steps=1)
LIMIT_SECONDS = 600


@pytest.fixture(scope="module")
def weights(sglang_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    with serving(sglang_path("0.5.16"), folder) as made:
        yield made


@pytest.fixture(scope="module")
def router_port(weights, tmp_path_factory):
    setup = RouterSetup([weights.server.url])
    with MilesRouterProcess(setup, tmp_path_factory.mktemp("router") / "log") as router:
        yield router.port


def run_in_a_run(weights, router_port):
    """Run the rollouts in a process of a run with our bindings; what they printed, and the roll."""
    slug = KVPreservation.slug
    trees = {"miles": Tree.installed("miles")}
    plan = make_plan(features(), [slug], trees, environment={}, settings={slug: SETTINGS})
    (decision,) = [row.decision for row in plan.rows_of(slug) if row.upstream == "miles"]
    bindings = bindings_named(decision.bindings)
    reference = FeatureReference.of(KVPreservation, SETTINGS)
    with RollCallServer(bindings, run_id=f"cancelled-{os.getpid()}") as roll_call:
        manifest = RunManifest(
            roll_call.run_id,
            roll_call.address,
            roll_call.token,
            (reference,),
            bindings,
            stand_ins="miles_periodic.compat.cpu.catalog:STAND_INS",
        )
        models = [str(model) for model in weights.models]
        done = subprocess.run(
            [sys.executable, str(HERE / "cancelled_rollouts.py"), str(router_port)]
            + [weights.server.url, *models],
            env={
                **os.environ,
                **cpu_environment(),
                **manifest.environment(),
                "PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}",
            },
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1]), roll_call.roll


def num_running(server):
    return sum(load["num_reqs"] for load in server.get("/get_load"))


def test_rollouts_beyond_the_bound_are_aborted_on_the_server_and_their_group_is_not_trained_on(
    weights, router_port
):
    seen, roll = run_in_a_run(weights, router_port)
    assert seen["statuses"] == ["aborted", "aborted", "completed"]
    assert [r.get("cancelled") is not None for r in seen["records"]] == [True, True, False]
    assert "2 weight versions ago, 1 are allowed" in seen["records"][0]["cancelled"]
    assert [record["start_weight_version"] for record in seen["records"]] == ["1", "1", "3"]
    assert not seen["group_is_kept"] and seen["young_is_kept"]
    assert seen["tally"] == [2, 0]
    assert not roll.failures
    assert becomes(lambda: num_running(weights.server) == 0)
