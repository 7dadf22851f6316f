"""Four releases of SGLang, each with all that the plan puts into it, in servers of Ray workers.

Other tests serve 0.5.16, 0.5.23 and the wheel's own. Which bindings are called where is on
file in compat/matrix/called.toml, and held against what the roll calls counted. Rows are compared
byte for byte: one request at a time, and nothing cached, is computed alike each time.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from begun_request import NUM_BEGUN
from injected_servers import DELTA_START, LONG, NUM_NEW, ServerOfAnEngine, observe
from patched_trees import patched_copy
from route_turns import read, same

from miles_periodic.compat.catalog import bindings_named
from miles_periodic.compat.cpu import tiny_model
from miles_periodic.compat.cpu.logical_gpus import ray_with_logical_gpus
from miles_periodic.compat.cpu.sglang_server import ServerSetup, SGLangServer
from miles_periodic.compat.matrix.called import called_in
from miles_periodic.compat.plan import make_plan
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks import Inject
from miles_periodic.plugins import features

pytestmark = pytest.mark.real

#: In place of `ServerSetup.flags`: where forwards overlap, these releases move a step's routes to
#: the host by a copy that on a CPU is none.
ONE_AT_A_TIME = ("--disable-overlap-schedule",)
FLAGS = {"0.5.9": ONE_AT_A_TIME, "0.5.11": ONE_AT_A_TIME, "0.5.12": (), "0.5.14": ()}
SLUGS = ("delta-router-replay", "decode-radix-cache")
#: What the first process of a server calls; its scheduler calls the others.
OF_THE_TOKENIZER = {"server/carry-start", "server/refuse-unpaired"}
#: What is in no patch set of the first of SLUGS.
HOOKED = {"server/refuse-unpaired"}
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two checkpoints of one shape, with different weights."""
    folder = tmp_path_factory.mktemp("models")
    for name, seed in (("before", 0), ("after", 7)):
        tiny_model.write(folder / name, seed=seed)
    return folder / "before", folder / "after"


@pytest.fixture(scope="module")
def ray():
    with (
        TemporaryDirectory(dir="/tmp", prefix="mp-") as folder,
        ray_with_logical_gpus(0, Path(folder)),
    ):
        yield


def planned(tree):
    """The names of all that the plan injects into an SGLang, by default settings."""
    plan = make_plan(features(), SLUGS, {"sglang": tree}, environment={})
    decisions = [row.decision for row in plan.rows if row.upstream == "sglang"]
    return {name for d in decisions if isinstance(d, Inject) for name in d.bindings}


@pytest.fixture(
    scope="module",
    params=[*((version, False) for version in FLAGS), ("0.5.11", True)],
    ids=lambda param: f"{param[0]}-patched" if param[1] else param[0],
)
def served(request, models, sglang_path, ray, tmp_path_factory):
    """(version, whether its sources are patched, what was seen) of one release."""
    version, is_patched = request.param
    *site, stock = sglang_path(version)
    names = planned(Tree.at("sglang", stock))
    folder = tmp_path_factory.mktemp("server")
    tree = patched_copy("sglang", stock, SLUGS[0], folder) if is_patched else stock
    setup = ServerSetup(
        models[0],
        [*site, tree, HERE],
        bindings_named(names),
        in_sources=tuple(names - HOOKED) if is_patched else (),
        flags=FLAGS[version],
    )
    with ServerOfAnEngine(setup, folder / "log") as server:
        return version, is_patched, observe(server, models)


def test_every_planned_binding_is_called_in_its_process_of_the_server_and_stands_on_file(served):
    version, _, seen = served
    assert seen.failures == []
    assert set(seen.where) == called_in(f"sglang-{version}")
    for name, roles in seen.where.items():
        assert roles == ({"process"} if name in OF_THE_TOKENIZER else {"scheduler"}), name


def test_the_ray_worker_that_started_the_server_has_joined_the_run_too(served):
    assert "engine" in served[-1].roles


def test_what_is_in_the_sources_is_not_hooked(served):
    _, is_patched, seen = served
    assert seen.in_sources == (set(seen.where) - HOOKED if is_patched else set())


def test_a_delta_is_the_suffix_of_all_rows(served):
    *_, seen = served
    assert len(seen.full.rows) == len(LONG) + 5 - 1
    assert same(seen.delta.rows, seen.full.rows[DELTA_START:])
    assert len(seen.behind.rows) == 3


def test_requests_without_routes_get_none_and_those_beside_them_all_of_theirs(served):
    *_, seen = served
    assert seen.silent == [None, None, None]
    assert [len(answer.rows) for answer in seen.beside] == [20 - 5 + 9 - 1] * 3


def test_a_request_that_was_retracted_keeps_the_rows_that_sampled_its_tokens(served):
    """It prefills them again under new weights, whose routes are others."""
    *_, seen = served
    pairs = zip(seen.retracted.logprobs, seen.alone.logprobs, strict=True)
    num_old = next(i for i, (mine, others) in enumerate(pairs) if mine != others)
    assert NUM_BEGUN <= num_old < NUM_NEW
    num_rows = len(LONG) + num_old - 1
    assert same(seen.retracted.rows[:num_rows], seen.alone.rows[:num_rows])
    assert not same(seen.retracted.rows[num_rows:], seen.alone.rows[num_rows:])


def test_without_the_bindings_the_start_is_ignored_by_a_release_that_only_declares_it(
    models, sglang_path, tmp_path
):
    setup = ServerSetup(models[0], sglang_path("0.5.11"), flags=ONE_AT_A_TIME)
    with SGLangServer(setup, tmp_path / "log") as server:
        answer = server.generate(LONG, routed_experts_start_len=DELTA_START)
    assert len(read(answer).rows) == len(LONG) + 4 - 1
