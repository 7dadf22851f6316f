"""What broke the server's side of router replay for others, as the behaviour that is right.

Each test names the report. Tests that read a release's sources would fail on a release that has
the fault and for which nothing here stands against it.
"""

import ast
import base64
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from miles_periodic.compat.bindings import server_capture, server_retraction, server_routes
from miles_periodic.compat.catalog import BINDINGS
from miles_periodic.compat.plan import make_plan
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks import Inject, PeriodicError, RolloutState
from miles_periodic.plugins import features
from miles_periodic.plugins.delta_router_replay import RouteRows, RouteRowsError, wire
from miles_periodic.plugins.delta_router_replay.feature import DeltaRouterReplay
from miles_periodic.plugins.delta_router_replay.settings import DeltaRouterReplaySettings

SLUG = "delta-router-replay"
RELEASES = [("sglang", v) for v in ("0.5.9", "0.5.11", "0.5.12", "0.5.16", "0.5.23")]
RELEASES.append(("miles-rl", "0.0.2"))
SHAPE = (3, 2)


def rows_of(num_rows, seed=0):
    drawn = np.random.default_rng(seed).random((num_rows, 3, 8))
    return np.argsort(drawn, axis=-1)[..., :2].astype(np.int32)


def text_of(rows):
    return base64.b64encode(rows.tobytes()).decode()


@pytest.fixture(params=RELEASES, ids="-".join)
def release(request, unpacked):
    distribution, version = request.param
    return Tree.at("sglang", unpacked(distribution, version, "3.11"))


@pytest.fixture
def decision(release):
    """What the plan puts into that release by default."""
    plan = make_plan(features(), [SLUG], {"sglang": release}, environment={})
    return next(row.decision for row in plan.rows_of(SLUG) if row.upstream == "sglang")


class CountingBuffer:
    """A host buffer that counts the rows that are read from it."""

    def __init__(self):
        self.num_read = 0

    def __getitem__(self, slots):
        assert all(isinstance(bound, int) for bound in (slots.start, slots.stop))
        self.num_read += slots.stop - slots.start
        return SimpleNamespace(numpy=lambda: np.ones((slots.stop - slots.start, 3, 2), np.int32))


class Slots:
    """A request's slots; a slice of them moves to the host as the slice itself."""

    def __getitem__(self, bounds):
        return SimpleNamespace(cpu=lambda: bounds)


@pytest.fixture
def buffer(monkeypatch):
    counting = CountingBuffer()
    monkeypatch.setattr(server_routes, "_host_buffer", lambda: counting)
    return counting


def long_request(num_prompt=30_000, num_output=1_200, start=30_000):
    return SimpleNamespace(
        rid="r",
        origin_input_ids=range(num_prompt),
        output_ids=range(num_output),
        return_routed_experts=True,
        routed_experts_start_len=start,
        input_embeds=None,
        req_pool_idx=0,
        seqlen=num_prompt + num_output,
    )


POOL = SimpleNamespace(req_to_token=[Slots()])


def test_sglang_24456_a_turn_reads_and_encodes_as_many_rows_as_it_added(buffer):
    asked = long_request()
    given = {"req": asked, "req_to_token_pool": POOL}
    server_retraction.keep(lambda **named: None, None, (), given)
    assert buffer.num_read == 1_199
    server_retraction.keep(lambda **named: None, None, (), given)
    assert buffer.num_read == 1_199
    assert wire.encode(rows_of(1_199), 30_000, 8).nbytes == 16 + 1_199 * 6


def test_sglang_24514_rows_are_cut_out_by_python_integers(buffer):
    server_routes.gathered(long_request(), POOL, 5, 9)
    assert buffer.num_read == 4


def sized_by(release, chunk, num_running, num_ranks):
    """The rows that a release's own formula gives its buffer of captured routes."""
    names = ("state_capturer.routed_experts", "layers.moe.routed_experts_capturer")
    module = next(m for n in names if (m := release.module(f"sglang.srt.{n}")))
    (formula,) = [
        node
        for node in ast.walk(module.syntax)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "max" and len(node.args) == 2
    ]
    arguments = SimpleNamespace(
        chunked_prefill_size=chunk, dp_size=num_ranks, num_dp_ranks=num_ranks
    )
    known = dict.fromkeys(
        ("get_global_server_args", "get_schedule", "get_parallel"), lambda: arguments
    )
    known |= {"server_args": arguments, "max_running_requests": num_running, "max": max}
    code = compile(ast.Expression(formula), release.name, "eval")
    return eval(code, {"__builtins__": {}}, known)


class Capturer:
    def __init__(self, num_rows):
        self.device_cache = SimpleNamespace(buffer=range(num_rows))


@pytest.fixture
def start(release, monkeypatch):
    """Start a release's capturer under these flags, with the check that the plan puts in."""

    def started(chunk, num_running=256, num_ranks=1, **flags):
        arguments = SimpleNamespace(chunked_prefill_size=chunk, dp_size=num_ranks, **flags)
        here = sys.modules[__name__]
        monkeypatch.setattr(here, "get_global_server_args", lambda: arguments, raising=False)
        if release.module("sglang.srt.layers.moe.topk").text.count("allow_routed_experts_capture"):
            monkeypatch.setattr(
                here, "disable_routed_experts_capture_for_draft", None, raising=False
            )
        capturer = Capturer(max(sized_by(release, chunk, num_running, num_ranks), 0))
        server_capture.check_room(
            lambda max_running_requests: None, capturer, (), {"max_running_requests": num_running}
        )

    return started


def test_each_release_gets_the_check_of_its_buffer(decision):
    assert isinstance(decision, Inject)
    assert any(name.startswith("server/check-capture-buffer") for name in decision.bindings)


def test_sglang_26123_a_buffer_has_room_for_the_decode_batches_of_all_ranks(release, start):
    needed = 2048 * 4
    if sized_by(release, 512, 2048, 4) >= needed:
        start(512, 2048, 4)
    else:
        with pytest.raises(PeriodicError, match="Set --chunked-prefill-size to 2048 or more"):
            start(512, 2048, 4)


def test_sglang_26860_a_prefill_without_bound_is_refused_by_its_flag(start):
    with pytest.raises(PeriodicError, match="Set --chunked-prefill-size"):
        start(-1)


def test_sglang_26860_miles_refuses_it_before_a_gpu_is_held():
    arguments = {"use_rollout_routing_replay": True, "sglang_chunked_prefill_size": -1}
    with pytest.raises(PeriodicError, match="Set --sglang-chunked-prefill-size"):
        DeltaRouterReplay().complete_arguments(arguments=arguments)


def test_sglang_26980_a_draft_model_never_writes_the_targets_routes(release, start):
    """A release either takes its drafts out of the capture, or is refused with one."""
    runner = release.module("sglang.srt.model_executor.model_runner")
    opts_out = [
        branch
        for branch in ast.walk(runner.syntax)
        if isinstance(branch, ast.If)
        and "is_draft_worker" in ast.unparse(branch.test)
        and "disable_routed_experts_capture_for_draft" in ast.unparse(branch)
    ]
    if opts_out:
        start(2048, speculative_algorithm="EAGLE")
    else:
        with pytest.raises(PeriodicError, match="Remove --speculative-algorithm"):
            start(2048, speculative_algorithm="EAGLE")


@pytest.mark.parametrize("num_rows", [39, 40], ids=["from 0.5.13 on", "before"])
def test_sglang_20964_rows_behind_a_prompt_without_new_tokens_come_with_the_next_turn(num_rows):
    rows = RouteRows(*SHAPE, 8)
    whole = rows_of(50)
    rows.append(0, text_of(whole[:num_rows]))
    rows.append(rows.next_start, text_of(whole[rows.next_start :]))
    assert np.array_equal(rows.array(), whole)


def test_sglang_36404_padding_that_repeats_a_stale_row_is_refused():
    stale = np.repeat(rows_of(1), 67, axis=0)
    with pytest.raises(RouteRowsError, match="67 equal rows"):
        RouteRows(*SHAPE, 8, max_constant_run=32).append(0, text_of(stale))


def test_sglang_36404_padding_of_minus_one_never_becomes_an_expert_of_a_compact_row():
    """A byte would make it expert 255; as int32 it reaches the client, which refuses it."""
    padded = rows_of(4)
    padded[2] = -1
    feature = DeltaRouterReplay(DeltaRouterReplaySettings(compact_wire=True))
    sent = feature.routed_experts_on_the_wire(rows=padded, first_row=0, num_experts=256)
    assert sent is None
    with pytest.raises(RouteRowsError, match="row 2, layer 0"):
        RouteRows(*SHAPE, 256).append(0, text_of(padded))


def test_sglang_20696_a_router_that_strips_the_flag_is_found_before_the_first_rollout():
    (proof,) = DeltaRouterReplay().server_proofs(request={"return_routed_experts": True})
    with pytest.raises(PeriodicError, match="Add --use-miles-router"):
        proof.check([{"meta_info": {}}, {"meta_info": {}}])


def test_vllm_42148_a_feature_that_is_off_binds_nothing(release):
    plan = make_plan(features(), [], {"sglang": release}, environment={})
    assert not any(isinstance(row.decision, Inject) for row in plan.rows)


def test_vllm_42148_what_is_put_in_runs_per_request_and_not_per_forward(decision):
    """Except for the clone that cures 0.5.15 to 0.5.17, nothing stands in a forward's way."""
    targets = {BINDINGS[name].qualname.rpartition(".")[2] for name in decision.bindings}
    per_request = {
        "__init__",
        "_create_tokenized_object",
        "handle_generate_request",
        "maybe_collect_routed_experts",
        "_maybe_collect_routed_experts",
        "release_req",
        "stream_output_generation",
    }
    overtaken = "server/own-captured-rows" in decision.bindings
    assert targets - per_request == ({"on_forward_end"} if overtaken else set())


def test_vllm_42148_a_rollout_without_replay_gets_no_field():
    asked = DeltaRouterReplay().generate_request_fields(
        rollout=RolloutState(), tokens=[1, 2], request={}
    )
    assert asked is None
