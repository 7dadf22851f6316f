"""Updaters that leave the servers' KV alone, and pauses that are one."""

from types import SimpleNamespace

import pytest

from miles_periodic.compat.bindings import weight_update


class Handle:
    """A Ray actor's handle that notes what is called through it."""

    def __init__(self, calls, name="engine"):
        self._calls, self._name = calls, name

    def __getattr__(self, method):
        def remote(*args, **kwargs):
            self._calls.append((self._name, method, kwargs))

        return SimpleNamespace(remote=remote)


class Updater:
    """An updater of Miles that flushes in every mode."""

    def __init__(self, mode, calls, **parts):
        self.args = SimpleNamespace(pause_generation_mode=mode)
        self.rollout_engines = [Handle(calls)]
        self._ipc_engine = self.rollout_engines[0]
        vars(self).update(parts)

    def update_weights(self):
        for engine in self.rollout_engines:
            engine.pause_generation.remote()
            engine.flush_cache.remote()
        self._ipc_engine.update_weights_from_tensor.remote(flush_cache=False)
        self._ipc_engine.flush_cache.remote()
        for engine in self.rollout_engines:
            engine.continue_generation.remote()
        return "done"


@pytest.fixture
def calls(monkeypatch):
    monkeypatch.setattr(weight_update, "_nothing", lambda: "a reference")
    monkeypatch.setattr(weight_update, "_wait", lambda references: None)
    monkeypatch.setattr(weight_update, "_is_first_rank", lambda: True)
    return []


def update(updater):
    return weight_update.keep_kv(updater.update_weights, updater, (), {})


def methods(calls):
    return [method for _, method, _ in calls]


def test_in_place_no_flush_is_sent_and_the_order_stays(calls):
    assert update(Updater("in_place", calls)) == "done"
    assert methods(calls) == [
        "pause_generation",
        "update_weights_from_tensor",
        "continue_generation",
    ]


def test_a_pause_that_names_no_mode_is_in_place(calls):
    update(Updater("in_place", calls))
    assert calls[0] == ("engine", "pause_generation", {"mode": "in_place"})


@pytest.mark.parametrize("mode", ["retract", "abort"])
def test_in_other_modes_miles_flushes_as_before(calls, mode):
    update(Updater(mode, calls))
    assert methods(calls).count("flush_cache") == 2
    assert calls[0] == ("engine", "pause_generation", {})


def test_the_updater_has_its_own_handles_back_afterwards(calls):
    updater = Updater("in_place", calls)
    handles = list(updater.rollout_engines)
    update(updater)
    assert updater.rollout_engines == handles and updater._ipc_engine is handles[0]


def test_the_updater_has_its_own_handles_back_after_a_failure(calls):
    updater = Updater("in_place", calls)
    handle = updater._ipc_engine

    def fail():
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        weight_update.keep_kv(fail, updater, (), {})
    assert updater._ipc_engine is handle


def test_a_rank_without_a_server_has_nothing_to_wrap(calls):
    updater = Updater("in_place", calls, rollout_engines=[], _ipc_engine=None)
    assert weight_update.keep_kv(lambda: updater._ipc_engine, updater, (), {}) is None


def test_servers_that_get_broadcasts_beside_a_colocated_trainer_are_paused_too(calls):
    rest = [Handle(calls, "rest")]
    update(Updater("in_place", calls, use_distribute=True, distributed_rollout_engines=rest))
    of_rest = [(i, method) for i, (name, method, _) in enumerate(calls) if name == "rest"]
    last = len(calls) - 1
    assert of_rest == [(0, "pause_generation"), (last, "continue_generation")]


@pytest.fixture
def engine():
    return SimpleNamespace(
        args=SimpleNamespace(pause_generation_mode="in_place"),
        server_host="server",
        server_port=1,
        node_rank=0,
    )


def make_request(endpoint, payload=None):
    return endpoint, payload


def ask(engine, *args, **kwargs):
    return weight_update.ask_without_flush(make_request, engine, args, kwargs)


def test_an_update_from_disk_in_place_says_that_nothing_is_flushed(engine):
    path = {"model_path": "there"}
    asked = ask(engine, "update_weights_from_disk", path)
    assert asked == ("update_weights_from_disk", {"model_path": "there", "flush_cache": False})
    assert path == {"model_path": "there"}


def test_a_flush_that_an_update_asks_for_in_place_is_taken_back(engine):
    _, payload = ask(engine, "update_weights_from_tensor", payload={"flush_cache": True})
    assert payload == {"flush_cache": False}


def test_other_requests_pass_as_they_are(engine):
    assert ask(engine, "begin_weight_update", {"selector": "all"})[1] == {"selector": "all"}
    assert ask(engine, "continue_generation")[1] is None


def test_in_other_modes_an_update_may_flush(engine):
    engine.args.pause_generation_mode = "retract"
    assert ask(engine, "update_weights_from_disk", {})[1] == {}


@pytest.fixture
def heard(monkeypatch):
    addresses = []
    monkeypatch.setattr(weight_update, "_hear_from_every_scheduler", addresses.append)
    return addresses


def pause(engine, *args, **kwargs):
    def pause_generation(mode="retract"):
        return mode

    return weight_update.pause_until_quiet(pause_generation, engine, args, kwargs)


def test_a_pause_in_place_waits_for_every_scheduler(engine, heard):
    assert pause(engine, mode="in_place") == "in_place"
    assert heard == ["http://server:1"]


def test_a_pause_that_a_flush_follows_waits_for_nothing_more(engine, heard):
    pause(engine)
    pause(engine, "retract")
    assert heard == []


def test_only_the_first_node_of_a_server_is_asked(engine, heard):
    engine.node_rank = 1
    pause(engine, "in_place")
    assert heard == []
