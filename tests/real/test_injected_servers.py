"""Releases of SGLang that no other test serves, each with all that the plan puts into it.

Other tests serve 0.5.16, 0.5.23 and the wheel's own. Which bindings are called where is on
file in compat/matrix/called.toml, and held against what the roll calls counted.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from injected_servers import FLAGS, NUM_NEW, NUM_PROMPT, RETRACTING, START, observe

from miles_periodic.compat.catalog import bindings_named
from miles_periodic.compat.cpu import tiny_model
from miles_periodic.compat.cpu.logical_gpus import ray_with_logical_gpus
from miles_periodic.compat.cpu.sglang_server import ServerSetup
from miles_periodic.compat.matrix.called import called_in
from miles_periodic.compat.plan import make_plan
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks import Inject
from miles_periodic.plugins import features

pytestmark = pytest.mark.real

RELEASES = ("0.5.12", "0.5.14")
SLUGS = ("delta-router-replay", "decode-radix-cache")
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_model.write(folder)
    return folder


@pytest.fixture(scope="module")
def ray_workers():
    """`ray_workers(function)`: that function, called in a Ray worker that finds these files."""
    import ray

    path = [str(HERE), str(HERE.parent / "lines"), *filter(None, [os.environ.get("PYTHONPATH")])]
    with (
        TemporaryDirectory(dir="/tmp", prefix="mp-") as folder,
        ray_with_logical_gpus(0, Path(folder)),
    ):
        environment = {"PYTHONPATH": os.pathsep.join(path)}

        def of(function):
            remote = ray.remote(runtime_env={"env_vars": environment})(function)
            return lambda *arguments: ray.get(remote.remote(*arguments))

        yield of


def planned(tree):
    """The names of all that the plan injects into an SGLang, by default settings."""
    plan = make_plan(features(), SLUGS, {"sglang": tree}, environment={})
    decisions = [row.decision for row in plan.rows if row.upstream == "sglang"]
    return {name for d in decisions if isinstance(d, Inject) for name in d.bindings}


@pytest.fixture(scope="module", params=RELEASES)
def served(request, model, sglang_path, ray_workers, tmp_path_factory):
    """(version, what was planned, what was seen) of one release."""
    path = sglang_path(request.param)
    names = planned(Tree.at("sglang", path[-1]))
    setup = ServerSetup(model, path, bindings_named(names), flags=FLAGS, environment=RETRACTING)
    seen = ray_workers(observe)(setup, tmp_path_factory.mktemp("server") / "log")
    return request.param, names, seen


def test_every_binding_is_called_in_a_process_of_the_server_and_stands_on_file(served):
    version, names, seen = served
    assert seen.failures == [] and seen.never_consulted == []
    consulted = {name for row in seen.roll for name in row["consulted"]}
    assert consulted == names == called_in(f"sglang-{version}")


def test_the_scheduler_that_the_server_spawned_is_one_of_them(served):
    by_role = {row["role"]: row for row in served[-1].roll}
    assert any("rows" in name for name in by_role["scheduler"]["consulted"])


def test_a_delta_is_the_suffix_of_all_rows(served):
    *_, seen = served
    assert seen.delta_rows and seen.delta_rows == seen.full_rows[30 * seen.row_bytes :]
    assert seen.num_rows_behind_the_prompt == 3


def test_requests_without_routes_get_none_beside_others_that_were_retracted(served):
    *_, seen = served
    assert seen.silent == [None, None, None]
    assert seen.num_retractions > 0


def test_rows_of_requests_that_were_retracted_are_those_of_a_prefill_of_the_same_tokens(served):
    """A step rounds unlike a prefill, so that a near tie turns over here and there."""
    *_, seen = served
    for rows, prefilled in zip(seen.retracted, seen.prefilled, strict=True):
        assert len(rows) == NUM_PROMPT + NUM_NEW - START - 1
        generated, others = rows[NUM_PROMPT - START :], prefilled[NUM_PROMPT - START : len(rows)]
        assert share_equal(rows, prefilled[: len(rows)]) > 0.95
        assert share_equal(generated, others) > 0.95
        assert share_equal(generated[1:], others[:-1]) < 0.75


def share_equal(rows, others):
    """The share of (row, layer) pairs that name the same experts."""
    return (np.sort(rows, axis=-1) == np.sort(others, axis=-1)).all(axis=-1).mean()
