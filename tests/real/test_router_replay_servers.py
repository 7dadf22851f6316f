"""Routes of stock SGLang servers, turn by turn, in every mode that a CPU can run."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from becoming import becomes
from begun_request import Begun
from route_turns import MODEL, SHAPE, ask, converse, drawn, is_compact, read, replaying, same

from miles_periodic.compat.cpu import tiny_model, wide_expert_parallel
from miles_periodic.compat.cpu.environment import cpu_environment
from miles_periodic.compat.cpu.sglang_server import ServerRefusal, SGLangServer
from miles_periodic.compat.matrix.called import calls
from miles_periodic.plugins.delta_router_replay import RouteRows

pytestmark = pytest.mark.real

#: The release of miles-rl, whose wheel has a server of its own.
WHEEL = "0.0.2"
#: Pieces of a prompt that are prefilled one after the other: smaller than every prompt below.
CHUNKED = ("--chunked-prefill-size", "32")
#: Room for two long requests, a scheduler that hopes for the best and takes in more, and one
#: that every 20 forwards retracts as it does when there is no room.
TIGHT = ("--max-total-tokens", "640", "--schedule-conservativeness", "0.1")
RETRACTING = {"SGLANG_TEST_RETRACT": "true", "SGLANG_TEST_RETRACT_INTERVAL": "20"}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two checkpoints of one shape, with different weights."""
    folder = tmp_path_factory.mktemp("models")
    for name, seed in (("before", 0), ("after", 7)):
        tiny_model.write(folder / name, seed=seed)
    return folder


@pytest.fixture(scope="module")
def started(models, sglang_path, unpacked, tmp_path_factory):
    """`started(version, flags, **settings)`: a server, until the next one is started.

    A server that waits for requests takes a core, and there may be two.
    """
    running = []

    def start(version, flags=(), **settings):
        for server in running:
            server.stop()
        path = [unpacked("miles-rl", WHEEL, "3.11")] if version == WHEEL else sglang_path(version)
        setup = replaying(models / "before", path, flags, **settings)
        running[:] = [SGLangServer(setup, tmp_path_factory.mktemp("server") / "log")]
        return running[0]

    return start


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("0.5.23", ()), id="0.5.23-overlap-compact"),
        pytest.param(("0.5.16", ()), id="0.5.16-overlap-compact"),
    ],
)
def server(request, started):
    """A server with overlap scheduling, chunked prefill and the compact wire."""
    version, flags = request.param
    with started(
        version, (*CHUNKED, *TIGHT, *flags), environment=RETRACTING, compact_wire=True
    ) as running:
        yield running


def test_rows_assembled_from_deltas_equal_all_rows_in_every_turn(server):
    talk = converse(server, drawn(1, 40))
    for turn, full in enumerate(talk.fulls):
        held = talk.rows.array()[: len(full.rows)]
        assert same(held, full.rows), f"turn {turn}"
    assert all(is_compact(answer) for answer in (*talk.deltas, *talk.fulls))
    assert talk.deltas[-1].meta["cached_tokens"] > 40
    assert len(talk.deltas[-1].rows) < len(talk.fulls[-1].rows) / 4


def test_rows_of_generated_tokens_equal_those_of_a_prefill_of_the_same_tokens(server):
    """Each row is its own token's: one that came a step late would be its neighbour's.

    A prefill rounds unlike a step, so that a near tie may turn over here and there: of 80 such
    answers the aligned share was 0.98 and more, that of the neighbours 0.18 to 0.59.
    """
    prompt = drawn(2, 45)
    sampled = ask(server, prompt, 60, sampling_params={"temperature": 1.5})
    prefilled = ask(server, [*prompt, *sampled.tokens], 1, extra_key="prefilled")
    mine, others = sampled.rows[len(prompt) :], prefilled.rows[len(prompt) : len(sampled.rows)]
    assert share_equal(mine, others) > 0.9
    assert share_equal(mine[1:], others[:-1]) < 0.75


def share_equal(rows, others):
    """The share of (row, layer) pairs that name the same experts."""
    return (np.sort(rows, axis=-1) == np.sort(others, axis=-1)).all(axis=-1).mean()


def test_a_request_that_asks_for_no_routes_spoils_none_of_its_neighbours(server):
    with ThreadPoolExecutor(8) as pool:
        prompts = [drawn(10 + i, 40) for i in range(6)]
        silent = [
            pool.submit(server.generate, prompts[i], 9, return_routed_experts=False)
            for i in (0, 2, 4)
        ]
        asking = {i: pool.submit(ask, server, prompts[i], 9, 30) for i in (1, 3, 5)}
        for answer in silent:
            assert not answer.result()["meta_info"].get("routed_experts")
        found = {i: answer.result() for i, answer in asking.items()}
    for i, answer in found.items():
        assert same(answer.rows, ask(server, prompts[i], 9).rows[30:])


def test_a_start_behind_the_prompt_is_refused_and_the_server_goes_on(server):
    prompt = drawn(20, 12)
    with pytest.raises(ServerRefusal, match="routed_experts_start_len=13"):
        ask(server, prompt, 4, 13)
    assert len(ask(server, prompt, 4, 12).rows) == 3


def test_no_new_token_brings_the_rows_of_the_prompt_and_the_next_turn_the_one_behind_them(server):
    prompt = drawn(21, 40)
    rows = RouteRows(*SHAPE, MODEL.num_experts)
    rows.append(0, ask(server, prompt, 0).text)
    assert len(rows) in (len(prompt) - 1, len(prompt))
    rows.append(rows.next_start, ask(server, prompt, 5, rows.next_start).text)
    assert same(rows.array(), ask(server, prompt, 5).rows)


def test_a_truncated_conversation_asks_again_from_where_it_was_cut(server):
    talk = converse(server, drawn(22, 40), num_turns=2)
    kept = 50
    talk.rows.truncate(kept)
    tokens = [*talk.tokens[:kept], *drawn(23, 9)]
    talk.rows.append(kept, ask(server, tokens, 4, kept).text)
    assert same(talk.rows.array(), ask(server, tokens, 4).rows)


def in_the_background(server, tokens, num_new, **fields):
    """Start a request, and return once it has generated something."""
    begun, pool = Begun(), ThreadPoolExecutor(1)
    sent = pool.submit(begun.generate, server, tokens, num_new, return_logprob=True, **fields)
    pool.shutdown(wait=False)
    begun.wait()
    return lambda start=0: read(sent.result(240), start)


def test_an_aborted_request_brings_the_rows_of_what_it_generated(server):
    prompt = drawn(24, 40)
    whole = ask(server, prompt, 400)
    running = in_the_background(server, prompt, 400, rid="to-be-aborted", extra_key="aborted")
    server.post("/abort_request", rid="to-be-aborted")
    aborted = running()
    assert aborted.meta["finish_reason"]["type"] == "abort"
    num_rows = len(prompt) + len(aborted.tokens) - 1
    assert len(prompt) < num_rows < len(whole.rows)
    assert same(aborted.rows, whole.rows[:num_rows])


def test_rows_of_requests_that_were_retracted_for_room_are_those_of_an_idle_server(server):
    """As far as the tokens are the same: a batch rounds unlike a request of its own."""
    prompts = [drawn(30 + i, 60) for i in range(3)]
    expected = [ask(server, prompt, 180, 20) for prompt in prompts]
    server.post("/flush_cache")
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda prompt: ask(server, prompt, 180, 20), prompts))
    assert sum(answer.meta["num_retractions"] for answer in answers) > 0
    for answer, alone in zip(answers, expected, strict=True):
        assert len(answer.rows) == len(alone.rows)
        num_rows = 60 - 20 + num_alike(answer.tokens, alone.tokens)
        assert num_rows > 40
        assert share_equal(answer.rows[:num_rows], alone.rows[:num_rows]) > 0.9


def num_alike(mine, others):
    """How many values two lists of one length begin with in common."""
    pairs = enumerate(zip(mine, others, strict=True))
    return next((i for i, (one, other) in pairs if one != other), len(mine))


@pytest.fixture
def updated(server, models):
    """`updated(mode)`: new weights in the middle of a request, and the old ones back afterwards.

    Yields what the request brought, and what it brings when it is left alone.
    """

    def swap(to, mode):
        server.post("/pause_generation", mode=mode)
        done = server.post(
            "/update_weights_from_disk", model_path=str(models / to), flush_cache=False
        )
        server.post("/continue_generation")
        assert done["success"]

    def run(mode):
        prompt = drawn({"retract": 40, "in_place": 41}[mode], 50)
        alone = ask(server, prompt, 300, return_logprob=True)
        running = in_the_background(server, prompt, 300, extra_key=f"updated-{mode}")
        swap("after", mode)
        return len(prompt), running(), alone

    yield run
    swap("before", "in_place")
    server.post("/flush_cache")


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_a_log_probability_keeps_the_routes_that_sampled_it_across_an_update(updated, mode):
    """`retract` prefills the tokens again with the new weights, whose routes are others."""
    num_prompt, answer, alone = updated(mode)
    num_old = num_alike(answer.logprobs, alone.logprobs)
    assert 1 < num_old < 300
    num_rows = num_prompt + num_old - 1
    assert same(answer.rows[:num_rows], alone.rows[:num_rows])
    assert not same(answer.rows[num_rows:], alone.rows[num_rows:])


def test_after_all_this_the_server_runs_and_every_binding_was_needed(server, request):
    version, _ = request.node.callspec.params["server"]
    called = calls()[f"sglang-{version}"]["tests/real/test_router_replay_servers.py"]

    def consulted():
        return {name for row in server.roll.rows() for name in row["consulted"]}

    becomes(lambda: called <= consulted() and not server.roll.never_consulted())
    assert server.is_running
    assert server.roll.failures == []
    assert server.roll.never_consulted() == []
    assert consulted() == called


@pytest.fixture(scope="module", params=["0.5.23", "0.5.16"])
def stepwise(request, started):
    """A server without overlap scheduling and without what the settings put in: plain int32."""
    flags = ("--disable-overlap-schedule", *CHUNKED)
    off = {"keep_rows_on_retraction": False, "check_capture_buffer": False}
    with started(request.param, flags, **off) as running:
        yield running


def test_without_overlap_and_as_int32_rows_are_the_same_in_every_turn(stepwise):
    talk = converse(stepwise, drawn(1, 40))
    assert not any(is_compact(answer) for answer in talk.deltas)
    for full in talk.fulls:
        assert same(talk.rows.array()[: len(full.rows)], full.rows)


@pytest.fixture(scope="module", params=["0.5.23"], ids=["0.5.23-overlap-two-ranks"])
def two_ranks(request, started):
    """Two data-parallel ranks whose experts are spread over both."""
    flags = ("--tp", "2", "--dp", "2", "--ep", "2", "--enable-dp-attention", *CHUNKED)
    with started(
        request.param,
        flags,
        environment=wide_expert_parallel.TWO_RANKS,
        stand_ins="miles_periodic.compat.cpu.wide_expert_parallel:STAND_INS",
        compact_wire=True,
    ) as running:
        yield running


def test_with_dp_attention_and_expert_parallelism_each_rank_returns_its_own_rows(two_ranks):
    def on_rank(rank):
        return converse(two_ranks, drawn(1, 40), routed_dp_rank=rank)

    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(on_rank, (0, 1)))
    for talk in together:
        for full in talk.fulls:
            assert same(talk.rows.array()[: len(full.rows)], full.rows)
        assert talk.deltas[-1].meta["cached_tokens"] > 40


@pytest.fixture(scope="module")
def older(started):
    """The wheel's own server, whose output batches list routes by position."""
    stand_ins = "miles_periodic.compat.cpu.catalog:STAND_INS"
    with started(WHEEL, CHUNKED, stand_ins=stand_ins, compact_wire=True) as running:
        yield running


def test_the_wheels_server_survives_requests_without_routes_beside_others(older):
    prompts = [drawn(50 + i, 40) for i in range(6)]
    with ThreadPoolExecutor(6) as pool:
        asked = [
            pool.submit(older.generate, prompt, 9, return_routed_experts=bool(i % 2))
            for i, prompt in enumerate(prompts)
        ]
        answers = [future.result() for future in asked]
    assert older.is_running
    for i, answer in enumerate(answers):
        if i % 2:
            assert same(read(answer).rows, ask(older, prompts[i], 9).rows)
        else:
            assert not answer["meta_info"].get("routed_experts")


def test_the_wheels_server_returns_equal_rows_in_every_turn(older):
    talk = converse(older, drawn(1, 40))
    assert all(is_compact(answer) for answer in talk.deltas)
    for full in talk.fulls:
        assert same(talk.rows.array()[: len(full.rows)], full.rows)


def test_a_buffer_that_one_prefill_can_overrun_is_refused_at_start(started):
    """Said in the scheduler's last words; SGLang's first process takes a minute to follow it."""
    server = started("0.5.23", ("--chunked-prefill-size", "-1"))
    server.start()
    try:
        assert said(server, "Set --chunked-prefill-size to the most tokens")
    finally:
        server.stop()


def said(server, words):
    """Whether a server that is starting says this, before it is up or gone."""

    def is_said():
        return words in server.log.read_text(errors="replace")

    becomes(lambda: is_said() or not server.is_running, 300)
    return is_said()


PASSED_ON = """
import msgspec, torch
from sglang.srt.utils.msgpack_utils import dec_hook, enc_hook, ext_hook

listed = list[torch.Tensor | None]
encoder = msgspec.msgpack.Encoder(enc_hook=enc_hook)
decoder = msgspec.msgpack.Decoder(listed, dec_hook=dec_hook, ext_hook=ext_hook)
blob = torch.arange(40, dtype=torch.uint8)
nothing, back = decoder.decode(encoder.encode([None, blob]))
assert nothing is None and torch.equal(back, blob)
"""


def test_a_blob_crosses_the_servers_other_form_of_messages_as_it_is(sglang_path):
    """SGLANG_USE_PICKLE_IPC=false, which trees have from 0.5.15 on."""
    path = ":".join(map(str, sglang_path("0.5.23")))
    own = {**cpu_environment(), "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", PASSED_ON],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
