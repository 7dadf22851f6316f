"""Miles's own router process before two real servers: which turns find their prefix there."""

import json
import random
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest
from becoming import becomes

from miles_periodic.compat.bindings.server_watch import READINGS_BEHIND
from miles_periodic.compat.catalog import bindings_named
from miles_periodic.compat.cpu import tiny_model
from miles_periodic.compat.cpu.miles_router import MilesRouterProcess, RouterSetup
from miles_periodic.compat.cpu.sglang_server import ServerSetup, SGLangServer
from miles_periodic.compat.manifest import FeatureReference
from miles_periodic.plugins.request_routing.sticky import key_of

pytestmark = pytest.mark.real

STAND_INS = "miles_periodic.compat.cpu.catalog:STAND_INS"
#: One open request is worth one token here: what decides is the prefix.
SETTINGS = {"queue_weight": 1.0, "kv_weight": 1.0, "load_weight": 1.0}
FLAGS = ("--max-total-tokens", "16384")
NUM_CONVERSATIONS, NUM_TURNS, NUM_NEW_TOKENS, NUM_TOOL_TOKENS = 4, 6, 8, 12
#: Far more than a short turn takes beside it.
NUM_LONG_TOKENS = 300


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("routing")
    tiny_model.write(folder / "model")
    setup = ServerSetup(
        folder / "model",
        flags=(*FLAGS, "--weight-version", "1"),
        stand_ins=STAND_INS,
    )
    made = [SGLangServer(setup, folder / f"server-{number}.log") for number in range(2)]
    try:
        for server in made:
            server.start()
        for server in made:
            server.wait()
        yield made
    finally:
        for server in made:
            server.stop()


def router_before(servers, log, with_feature=True):
    """The wheel's router process before some servers."""
    path = "miles_periodic.plugins.request_routing.feature:RequestRouting"
    on = (FeatureReference("request-routing", path, SETTINGS),) if with_feature else ()
    names = ("routing/request", "routing/server") if with_feature else ()
    bindings = bindings_named(names)
    return MilesRouterProcess(RouterSetup([s.url for s in servers], bindings, on), log)


def post(url, body, key=None):
    headers = {"Content-Type": "application/json"} | ({"X-SMG-Routing-Key": key} if key else {})
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)


@dataclass
class Conversation:
    """Its tokens, and how many of each turn's prompt were cached, with the length before."""

    tokens: list
    key: str | None = None
    cached: list = field(default_factory=list)
    held: list = field(default_factory=list)
    num_refused: int = 0
    version: str = ""

    def turn(self, router, num_new_tokens=NUM_NEW_TOKENS):
        sampling = {"max_new_tokens": num_new_tokens, "temperature": 0.0, "ignore_eos": True}
        body = {"input_ids": self.tokens, "sampling_params": sampling, "return_logprob": True}
        answer = self._until_answered(router, body)
        meta = answer["meta_info"]
        self.cached.append(meta["cached_tokens"])
        self.version = meta["weight_version"]
        new = [entry[1] for entry in meta["output_token_logprobs"]]
        self.held.append(len(self.tokens) + len(new))
        tool = [(self.tokens[0] + 7 * i) % 400 + 20 for i in range(NUM_TOOL_TOKENS)]
        self.tokens = self.tokens + new + tool

    def _until_answered(self, router, body):
        """As Miles's client: a request that fails is sent again."""
        for _ in range(200):
            try:
                return post(f"{router.url}/generate", body, self.key)
            except urllib.error.HTTPError:
                self.num_refused += 1
                time.sleep(0.2)
        pytest.fail("no server answers")

    @property
    def found(self):
        """Whether each turn after the first found all that the turn before left but one token."""
        return [c >= h - 1 for c, h in zip(self.cached[1:], self.held, strict=False)]


def conversations(seed):
    """Two with a key, as Miles's client sends it, and two that only their tokens tell apart."""
    prompts = [[(seed + 31 * n + 3 * i * (n + 1)) % 480 + 20 for i in range(200)] for n in range(4)]
    keys = [key_of("rollout", f"sample-{seed}-{n}") if n < 2 else None for n in range(4)]
    return [Conversation(tokens, key) for tokens, key in zip(prompts, keys, strict=True)]


def one_round(router, talks, number):
    """One turn of every conversation, all at once, in an order that differs from round to round."""
    order = random.Random(number).sample(talks, len(talks))
    threads = [threading.Thread(target=each.turn, args=(router,)) for each in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def talk(router, talks, num_turns=NUM_TURNS):
    for turn in range(num_turns):
        one_round(router, talks, turn)
    return [found for each in talks for found in each.found]


@contextmanager
def open_turn(router, servers, conversation):
    """Meanwhile a server generates a turn of that conversation."""
    turn = threading.Thread(target=conversation.turn, args=(router, NUM_LONG_TOKENS))
    turn.start()
    assert becomes(lambda: sum(map(num_running, servers)))
    yield
    assert turn.is_alive()
    turn.join()


def num_running(server):
    """Requests of which a server is generating."""
    return sum(load["num_reqs"] - load["num_waiting_reqs"] for load in server.get("/get_load"))


def test_without_the_feature_a_turn_misses_its_prefix_where_another_request_is_open(
    servers, tmp_path
):
    with router_before(servers, tmp_path / "log", with_feature=False) as router:
        one, other, *_ = conversations(1)
        one.turn(router)
        with open_turn(router, servers, other):
            one.turn(router)
    assert one.found == [False]


def test_with_the_feature_every_turn_finds_its_prefix_and_the_router_process_shows_it(
    servers, tmp_path
):
    with router_before(servers, tmp_path / "log") as router:
        talks = conversations(2)
        assert all(talk(router, talks)), [(each.cached, each.held) for each in talks]
        for one, other in ((talks[0], talks[1]), (talks[2], talks[3])):
            with open_turn(router, servers, other):
                one.turn(router)
            assert one.found[-1] and other.found[-1]
        num_turns = NUM_CONVERSATIONS * NUM_TURNS + 4
        becomes(lambda: consulted(router) >= num_turns)
        (row,) = [r for r in router.roll_call.roll.rows() if r["role"] == "router"]
        assert row["applied"] == ["routing/request", "routing/server"]
        assert consulted(router) == num_turns
        assert not router.roll_call.roll.failures
    loads = [server.get("/v1/loads?include=core")["loads"] for server in servers]
    assert all(ranks and "num_waiting_reqs" in ranks[0] for ranks in loads)


def consulted(router):
    """How often the router is known to have asked for a server."""
    rows = [r for r in router.roll_call.roll.rows() if r["role"] == "router"]
    return sum(row["consulted"].get("routing/server", 0) for row in rows)


def test_one_server_alone_is_said_to_leave_nothing_to_choose(servers, tmp_path):
    with router_before(servers[:1], tmp_path / "log") as router:
        conversations(3)[0].turn(router)
        assert becomes(lambda: [n for n in router.notices if "nothing to choose" in n])


def test_conversations_of_a_server_that_dies_go_on_on_the_other(servers, tmp_path):
    with router_before(servers, tmp_path / "log") as router:
        talks = conversations(4)
        with open_turn(router, servers, talks[0]):
            talks[1].turn(router)  # And so at the other server.
        talk(router, talks[2:], num_turns=1)
        one_round(router, talks, 1)
        assert all(each.found == [True] for each in talks)
        servers[0].stop()
        one_round(router, talks, 2)
        moved = [each for each in talks if not each.found[-1]]
        assert 0 < len(moved) < NUM_CONVERSATIONS
        # A reading, or the first request that fails, says that the server is gone.
        assert sum(each.num_refused for each in talks) <= len(moved)
        one_round(router, talks, 3)
        assert all(each.found[-1] for each in talks)
        assert all(len(each.cached) == 4 for each in talks)


def versions_answering(router, seed):
    """The weight versions of the servers that answer four new conversations at once."""
    talks = conversations(seed)
    talk(router, talks, num_turns=1)
    return {each.version for each in talks}


def wait_until_read(server, times=1):
    """Until the router has taken in so many readings of a server that began from now on.

    One was perhaps on its way; and the last one is over when another one asks.
    """
    wanted = num_readings(server) + times + 2
    assert becomes(lambda: num_readings(server) >= wanted)


def num_readings(server):
    """How often a server was asked for its weight version."""
    return server.log.read_text(errors="replace").count('"GET /model_info HTTP/1.1" 200')


def test_a_recovered_server_gets_requests_once_it_has_the_current_weights(servers, tmp_path):
    dead = servers[0]
    recovered = SGLangServer(replace(dead.setup, flags=FLAGS), tmp_path / "recovered.log")
    recovered.port, recovered.url = dead.port, dead.url
    dead.stop()
    with router_before(servers, tmp_path / "log") as router:
        assert versions_answering(router, 5) == {"1"}
        with recovered:
            for seed in (6, 7, 8):
                assert versions_answering(router, seed) == {"1"}
                time.sleep(2)
            recovered.post("/update_weight_version", new_version="2", abort_all_requests=False)
            wait_until_read(recovered)
            wait_until_read(servers[1], READINGS_BEHIND)
            assert versions_answering(router, 9) == {"2"}
