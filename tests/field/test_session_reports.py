"""What broke sessions for others, as the behaviour that is right: Miles 0.0.2's own session server.

Behind it stands a server whose routes follow from the tokens and the weight version. Each test
names the report.
"""

import itertools

import numpy as np
import pytest
from session_backend import SessionBackend, routes
from session_talk import Kind, ServerRefusal, SessionServer
from transformers import AutoTokenizer

from miles_periodic.compat.cpu import tiny_model
from miles_periodic.compat.tree import Tree
from miles_periodic.plugins.kv_preservation.feature import salt_of

BOTH = ("delta-router-replay", "kv-preservation")
START = "routed_experts_start_len"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_model.write(folder)
    return folder


@pytest.fixture(scope="module")
def backend(model):
    running = SessionBackend(AutoTokenizer.from_pretrained(model))
    yield running
    running.close()


@pytest.fixture(scope="module")
def server(backend, model, tmp_path_factory):
    kind = Kind("miles.rollout.session.session_server", Tree.installed("miles"))
    log = tmp_path_factory.mktemp("server") / "log"
    with SessionServer(kind, backend.url, model, BOTH, log) as running:
        yield running


#: Weights only ever become newer, and a session server remembers the newest that it saw.
decades = itertools.count(10, 10)


@pytest.fixture
def version():
    return next(decades)


@pytest.fixture
def talk(server, backend, version):
    backend.version, backend.asked, backend.compact = str(version), [], False
    assert server.roll_call.roll.failures == []
    return server.open_session()


def boundaries(asked):
    """The first row that each turn asked for, and the end of the last one."""
    return [request.get(START, 0) for request in asked]


def test_miles_3307_rows_of_earlier_turns_are_not_overwritten_after_a_retract(
    talk, backend, version, tmp_path
):
    """A retracted prefix is computed again under newer weights; its rows are another pass."""
    for turn in range(6):
        backend.version = str(version + turn // 3)
        talk.say(f"Turn {turn}.")
    tokens, rows = talk.samples(tmp_path / "sample.npz")
    update = boundaries(backend.asked)[3]
    old, new = routes(tokens[:-1], version), routes(tokens[:-1], version + 1)
    assert rows[:update].astype(np.int32).tolist() == old[:update].tolist()
    assert rows[update:].astype(np.int32).tolist() == new[update:].tolist()
    assert old[:update].tolist() != new[:update].tolist()


def test_miles_1672_a_turn_without_routes_ends_what_can_be_trained_on(talk, backend, tmp_path):
    for turn in range(4):
        backend.aborts = turn == 2
        talk.say(f"Turn {turn}.")
    starts = boundaries(backend.asked)
    assert starts[3] == starts[2]
    tokens, rows = talk.samples(tmp_path / "sample.npz")
    assert len(rows) == len(tokens) - 1 == starts[2]


def test_compact_routes_join_to_the_same_rows(talk, backend, version, tmp_path):
    for turn in range(4):
        backend.compact = turn % 2 == 0
        talk.say(f"Turn {turn}.")
    tokens, rows = talk.samples(tmp_path / "sample.npz")
    assert rows.dtype == np.uint8
    assert rows.tolist() == routes(tokens[:-1], version).tolist()


def test_miles_1807_an_answer_by_a_server_that_was_not_updated_is_no_turn(talk, backend, version):
    talk.say("Turn 0.")
    backend.version = "default"
    with pytest.raises(ServerRefusal, match="not updated yet") as refusal:
        talk.say("Turn 1.")
    assert refusal.value.status == 502
    backend.version = str(version + 1)
    talk.say("Turn 1.")
    assert [r["response"]["id"] for r in talk.records()] == ["request-1", "request-3"]


def test_miles_1807_a_session_that_begins_on_such_a_server_is_refused_too(talk, backend, server):
    talk.say("Another session has seen the newest weights.")
    backend.version = "default"
    late = server.open_session()
    with pytest.raises(ServerRefusal, match="not updated yet"):
        late.say("Turn 0.")


def test_sglang_24638_no_key_of_a_client_is_taken_for_a_salt_of_ours(
    talk, server, backend, version
):
    """Salts are typed and have a namespace; a client's own keys stay apart inside of them."""
    forged = salt_of(str(version))
    talk.say("Turn 0.", extra_key=forged)
    others = [{}, {"cache_salt": forged}, {"extra_key": "a", "cache_salt": "b"}]
    others += [{"extra_key": "b", "cache_salt": "a"}, {"extra_key": "ab"}]
    for fields in others:
        server.open_session().say("Turn 0.", **fields)
    keys = [request["extra_key"] for request in backend.asked]
    assert len(set(keys)) == len(keys) == 6
    assert all(key.startswith(forged) for key in keys)
    assert not any(request.get("cache_salt") for request in backend.asked)


def test_sglang_24851_a_server_that_ignores_the_start_ends_the_run(backend, model, tmp_path):
    """SGLang 0.5.9 to 0.5.11 accept the field and answer all rows."""
    kind = Kind("miles.rollout.session.session_server", Tree.installed("miles"))
    with SessionServer(kind, backend.url, model, BOTH[:1], tmp_path / "log") as server:
        talk = server.open_session()
        talk.say("Turn 0.")
        backend.ignores_start = True
        with pytest.raises(ServerRefusal):
            talk.say("Turn 1.")
        backend.ignores_start = False
        assert server.roll_call.failed.wait(10)
        (failure,) = server.roll_call.roll.failures
    assert "ignored routed_experts_start_len" in failure.reason
