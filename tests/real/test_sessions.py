"""Miles 0.0.2's own session server in front of its own SGLang, with and without the features."""

import base64
import json
import threading

import numpy as np
import pytest
from becoming import becomes
from session_talk import MODEL, Kind, SessionServer, meta_of

from miles_periodic.compat.cpu import tiny_model
from miles_periodic.compat.cpu.sglang_server import ServerSetup, SGLangServer
from miles_periodic.compat.matrix.called import calls
from miles_periodic.compat.tree import Tree
from miles_periodic.plugins.kv_preservation.feature import salt_of

pytestmark = pytest.mark.real

BOTH = ("delta-router-replay", "kv-preservation")
STAND_INS = "miles_periodic.compat.cpu.catalog:STAND_INS"
WORDS = [f"Turn {turn}: what is {turn} plus {turn + 3}?" for turn in range(6)]
START = "routed_experts_start_len"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, seed in (("before", 0), ("after", 7)):
        tiny_model.write(folder / name, seed=seed)
    return folder


@pytest.fixture(scope="module")
def backend(models, tmp_path_factory):
    setup = ServerSetup(models / "before", stand_ins=STAND_INS)
    with SGLangServer(setup, tmp_path_factory.mktemp("server") / "log") as running:
        yield running


@pytest.fixture(scope="module")
def kind():
    return Kind("miles.rollout.session.session_server", Tree.installed("miles"))


@pytest.fixture(scope="module")
def featured(backend, models, kind, tmp_path_factory):
    log = tmp_path_factory.mktemp("featured") / "log"
    with SessionServer(kind, backend.url, models / "before", BOTH, log) as running:
        yield running
        assert running.roll_call.roll.failures == []


@pytest.fixture(scope="module")
def plain(backend, models, kind, tmp_path_factory):
    log = tmp_path_factory.mktemp("plain") / "log"
    with SessionServer(kind, backend.url, models / "before", (), log) as running:
        yield running


def rows_in(record):
    content = base64.b64decode(meta_of(record)["routed_experts"])
    return np.frombuffer(content, np.int32).reshape(
        -1, MODEL.num_hidden_layers, MODEL.num_experts_per_tok
    )


def num_running(server):
    """Requests of which the server is generating."""
    return sum(load["num_reqs"] - load["num_waiting_reqs"] for load in server.get("/get_load"))


def test_deltas_joined_over_six_turns_equal_what_full_answers_say(featured, plain, tmp_path):
    talks = [server.open_session() for server in (featured, plain)]
    for words in WORDS:
        for talk in talks:
            talk.say(words)
    (tokens, rows), (plain_tokens, plain_rows) = (
        talk.samples(tmp_path / f"{index}.npz") for index, talk in enumerate(talks)
    )
    assert tokens.tolist() == plain_tokens.tolist()
    assert (rows.dtype, plain_rows.dtype) == (np.uint8, np.int32)
    assert rows.astype(np.int32).tobytes() == plain_rows.tobytes()

    deltas, fulls = (talk.records() for talk in talks)
    starts = [record["request"].get(START, 0) for record in deltas]
    ends = [len(record["request"]["input_ids"]) + 8 - 1 for record in deltas]
    assert starts == [0, *ends[:-1]]
    assert [len(rows_in(record)) for record in deltas] == np.diff([0, *ends]).tolist()
    assert [len(rows_in(record)) for record in fulls] == ends
    roles = {row["role"]: row for row in featured.roll_call.roll.rows()}
    assert "session/proxy" in roles["session-server"]["applied"]


def test_a_retracted_turn_and_new_weights_leave_the_rows_of_earlier_turns(
    featured, backend, models, tmp_path
):
    talk = featured.open_session()
    for words in WORDS[:3]:
        talk.say(words)
    before = [rows_in(record) for record in talk.records()]
    old_version = talk.records()[0]["response"]["choices"][0]["meta_info"]["weight_version"]

    turn = threading.Thread(target=talk.say, args=(WORDS[3],), kwargs={"num_tokens": 400})
    turn.start()
    assert becomes(lambda: num_running(backend))
    backend.post("/pause_generation", mode="retract")
    assert turn.is_alive()
    update = {"model_path": str(models / "after"), "weight_version": "2", "flush_cache": False}
    assert backend.post("/update_weights_from_disk", **update)["success"]
    assert backend.post("/flush_cache") is not None
    backend.post("/continue_generation")
    turn.join(120)
    for words in WORDS[4:]:
        talk.say(words)

    records = talk.records()
    assert len(records) == 6
    assert [meta_of(r)["weight_version"] for r in records][-1] == "2" != old_version
    tokens, rows = talk.samples(tmp_path / "sample.npz")
    assert len(rows) == len(tokens) - 1
    held = np.concatenate(before)
    assert rows[: len(held)].astype(np.int32).tobytes() == held.tobytes()

    full = backend.post(
        "/generate",
        input_ids=tokens.tolist(),
        sampling_params={"max_new_tokens": 1},
        return_routed_experts=True,
        extra_key=salt_of(old_version),
    )["meta_info"]["routed_experts"]
    recomputed = np.frombuffer(base64.b64decode(full), np.int32)
    assert recomputed[: held.size].tobytes() != held.tobytes()

    salts = {record["request"]["extra_key"] for record in records}
    assert salts == {salt_of(old_version)}


def test_a_session_keeps_its_salt_and_a_new_version_gets_another(featured, backend, models):
    backend.post(
        "/update_weights_from_disk",
        model_path=str(models / "before"),
        weight_version="3",
        flush_cache=False,
    )
    old = featured.open_session()
    first = old.say("Salts: one prompt for both.", extra_key="mine", cache_salt="of the agent")
    backend.post(
        "/update_weights_from_disk",
        model_path=str(models / "before"),
        weight_version="4",
        flush_cache=False,
    )
    again, new = featured.open_session(), featured.open_session()
    cold = again.say("Salts: one prompt for both.", extra_key="mine", cache_salt="of the agent")
    warm = new.say("Salts: one prompt for both.", extra_key="mine", cache_salt="of the agent")
    old.say("More.", extra_key="mine", cache_salt="of the agent")
    cached = [a["choices"][0]["meta_info"]["cached_tokens"] for a in (first, cold, warm)]
    assert cached[0] == cached[1] == 0 < cached[2]
    assert meta_of(old.records()[1])["cached_tokens"] > 0
    keys = [{r["request"]["extra_key"] for r in talk.records()} for talk in (old, again)]
    assert keys == [{salt_of(v, "12:of the agentmine")} for v in ("3", "4")]


def test_a_turn_that_is_asked_again_asks_for_the_rows_that_it_lost(featured, tmp_path):
    talk = featured.open_session()
    for words in WORDS[:3]:
        talk.say(words)
    talk.messages = talk.messages[:4]
    talk.say("Another question.")
    starts = [record["request"].get(START, 0) for record in talk.records()]
    assert len(starts) == 3
    tokens, rows = talk.samples(tmp_path / "sample.npz")
    joined = np.concatenate([rows_in(record) for record in talk.records()])
    assert rows.astype(np.int32).tobytes() == joined.tobytes()
    assert json.dumps(talk.metadata()["accumulated_token_ids"]) == json.dumps(tokens.tolist())


def test_every_binding_of_a_session_is_called_in_its_processes_and_stands_on_file(
    featured, tmp_path
):
    talk = featured.open_session()
    talk.say(WORDS[0])
    talk.samples(tmp_path / "sample.npz")
    called, roll = calls()["miles-rl-0.0.2"]["tests/real/test_sessions.py"], featured.roll_call.roll
    assert becomes(lambda: {n for row in roll.rows() for n in row["consulted"]} == called)
