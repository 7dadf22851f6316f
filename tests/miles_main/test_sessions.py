"""The session server of Miles at git main, v1 and v2: new rows only, whatever the pause mode."""

import pytest
from session_backend import SessionBackend, routes
from session_talk import Kind, ServerRefusal, SessionServer
from transformers import AutoTokenizer

from miles_periodic.compat.cpu import tiny_model
from miles_periodic.compat.tree import Tree
from miles_periodic.plugins.kv_preservation.feature import salt_of

BOTH = ("delta-router-replay", "kv-preservation")
START = "routed_experts_start_len"
#: Miles main imports parts of SGLang that the wheel's lacks and later releases moved.
SGLANG = "0.5.16"
HUB = "miles.rollout.session.v2"
TREE_ARGUMENTS = {
    "use_session_server": "v2",
    "session_sample_picker_path": f"{HUB}.picker_hub.drop_retries",
    "session_sample_postprocessor_path": f"{HUB}.postprocessor_hub.default_postprocess",
}


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


@pytest.fixture(scope="module", params=["v1-retract", "v2-retract", "v1-in_place"])
def server(request, backend, model, miles_tree, sglang_path, tmp_path_factory):
    server_version, mode = request.param.split("-")
    arguments = {
        "pause_generation_mode": mode,
        "sglang_speculative_algorithm": None,
        "save_debug_trajectory_data": None,
        **(TREE_ARGUMENTS if server_version == "v2" else {}),
    }
    path = tuple(map(str, (miles_tree, *sglang_path(SGLANG))))
    tree = Tree.at("miles", miles_tree)
    kind = Kind("miles.rollout.session.server", tree, path, tuple(arguments.items()))
    log = tmp_path_factory.mktemp("server") / "log"
    with SessionServer(kind, backend.url, model, BOTH, log) as running:
        yield running


@pytest.fixture
def talk(server, backend):
    # Weights only ever become newer, and a session server remembers the newest that it saw.
    backend.version = str((int(backend.version) // 10 + 1) * 10)
    backend.asked, backend.compact = [], False
    assert server.roll_call.roll.failures == []
    return server.open_session()


def starts(backend):
    return [request.get(START, 0) for request in backend.asked]


def test_miles_3307_rows_of_earlier_turns_stay_over_an_update_in_every_mode(talk, backend):
    first = int(backend.version)
    for turn in range(6):
        backend.version = str(first + turn // 3)
        backend.compact = turn % 2 == 1
        talk.say(f"Turn {turn}.")
    ((tokens, rows),) = talk.decoded()
    update = starts(backend)[3]
    assert starts(backend) == sorted(set(starts(backend)))
    assert rows[:update].tolist() == routes(tokens[:-1], first)[:update].tolist()
    assert rows[update:].tolist() == routes(tokens[:-1], first + 1)[update:].tolist()
    assert {request["extra_key"] for request in backend.asked} == {salt_of(str(first))}


def test_a_turn_without_routes_ends_the_sample(talk, backend):
    for turn in range(4):
        backend.aborts = turn == 2
        talk.say(f"Turn {turn}.")
    ((tokens, rows),) = talk.decoded()
    assert len(rows) == len(tokens) - 1 == starts(backend)[2] == starts(backend)[3]


def test_a_turn_that_is_asked_again_asks_from_where_it_parts(talk, backend):
    for turn in range(3):
        talk.say(f"Turn {turn}.")
    kept = talk.messages[:4]
    talk.messages = list(kept)
    talk.say("Another question.")
    assert starts(backend)[3] == starts(backend)[2]
    version = int(backend.version)
    for tokens, rows in talk.decoded():
        assert rows.tolist() == routes(tokens[:-1], version).tolist()


def test_an_answer_by_a_server_that_was_not_updated_is_no_turn(talk, backend):
    talk.say("Turn 0.")
    version, backend.version = backend.version, "default"
    with pytest.raises(ServerRefusal, match="not updated yet"):
        talk.say("Turn 1.")
    backend.version = version
    talk.say("Turn 1.")
    assert [r["response"]["id"] for r in talk.records()] == ["request-1", "request-3"]


def test_every_binding_of_the_server_was_applied_and_called(server, talk, backend):
    talk.say("Turn 0.")
    assert len(talk.decoded()) == 1
    (row,) = [r for r in server.roll_call.roll.rows() if r["role"] == "session-server"]
    assert {"session/new-rows", "session/assemble", "session/widen"} <= set(row["applied"])
