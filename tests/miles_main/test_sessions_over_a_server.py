"""The session server of Miles at git main in front of a real stock SGLang, over a retract."""

import base64

import numpy as np
import pytest
from session_talk import MODEL, Kind, SessionServer

from miles_periodic.compat.cpu import tiny_model
from miles_periodic.compat.cpu.sglang_server import ServerSetup, SGLangServer
from miles_periodic.compat.tree import Tree

pytestmark = pytest.mark.real

SGLANG = "0.5.16"
START = "routed_experts_start_len"
#: One of these comes soon: a session of Miles main goes on only after a turn that stopped.
STOPS = list("aeinorst 0123456789")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, seed in (("before", 0), ("after", 7)):
        tiny_model.write(folder / name, seed=seed)
    return folder


@pytest.fixture(scope="module")
def backend(models, sglang_path, tmp_path_factory):
    setup = ServerSetup(models / "before", sglang_path(SGLANG))
    with SGLangServer(setup, tmp_path_factory.mktemp("server") / "log") as running:
        yield running


@pytest.fixture(scope="module")
def started(backend, models, miles_tree, sglang_path, tmp_path_factory):
    arguments = {"sglang_speculative_algorithm": None, "save_debug_trajectory_data": None}
    path = tuple(map(str, (miles_tree, *sglang_path(SGLANG))))
    tree = Tree.at("miles", miles_tree)
    kind = Kind("miles.rollout.session.server", tree, path, tuple(arguments.items()))

    def start(*slugs):
        log = tmp_path_factory.mktemp("sessions") / "log"
        return SessionServer(kind, backend.url, models / "before", slugs, log)

    return start


def rows_in(record):
    text = record["response"]["choices"][0]["meta_info"]["routed_experts"]
    shape = (-1, MODEL.num_hidden_layers, MODEL.num_experts_per_tok)
    return np.frombuffer(base64.b64decode(text), np.int32).reshape(shape)


def test_new_rows_join_to_all_rows_and_stay_over_a_retract_with_new_weights(
    started, backend, models
):
    with started("delta-router-replay", "kv-preservation") as server, started() as plain:
        talk, full = server.open_session(), plain.open_session()
        for turn in range(6):
            for session in (talk, full):
                session.say(f"Turn {turn}: what is it?", 64, stop=STOPS, ignore_eos=False)
        ((tokens, rows),), ((all_tokens, all_rows),) = talk.decoded(), full.decoded()
        assert tokens.tolist() == all_tokens.tolist()
        assert rows.tobytes() == all_rows.tobytes()
        records = talk.records()
        starts = [record["request"].get(START, 0) for record in records]
        assert starts == np.cumsum([0, *(len(rows_in(r)) for r in records[:-1])]).tolist()

        backend.post("/pause_generation", mode="retract")
        update = {"model_path": str(models / "after"), "weight_version": "2"}
        assert backend.post("/update_weights_from_disk", **update)["success"]
        backend.post("/continue_generation")
        for session in (talk, full):
            session.say("After the update: what is it?", 64, stop=STOPS, ignore_eos=False)
        ((_, after),), ((_, overwritten),) = talk.decoded(), full.decoded()
        assert after[: len(rows)].tobytes() == rows.tobytes()
        assert overwritten[: len(rows)].tobytes() != rows.tobytes()
        assert server.roll_call.roll.failures == []
