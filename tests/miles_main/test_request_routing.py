"""The router of Miles main under our bindings, before two servers that keep whole prompts."""

import json
import urllib.request

import pytest
from becoming import becomes
from json_server import JsonServer
from miles_trees import MAIN

from miles_periodic.compat.catalog import bindings_named
from miles_periodic.compat.cpu.miles_router import MilesRouterProcess, RouterSetup
from miles_periodic.compat.manifest import FeatureReference
from miles_periodic.compat.matrix.called import calls
from miles_periodic.compat.plan import make_plan
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks import Inject
from miles_periodic.plugins import features

FEATURE = FeatureReference(
    "request-routing", "miles_periodic.plugins.request_routing.feature:RequestRouting"
)
ROUTER_BINDINGS = ("routing/request", "routing/server")
LOAD = {"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0, "token_usage": 0.0}]}


class Server(JsonServer):
    """Answers `/generate` with how much of the prompt it has seen before."""

    def __init__(self):
        self.prompts = []
        super().__init__()

    def get(self, path):
        return LOAD if path.startswith("/v1/loads") else {"weight_version": "1"}

    def post(self, path, body):
        return {"meta_info": self.counts(body["input_ids"])}

    def counts(self, prompt):
        cached = max((len(p) for p in self.prompts if prompt[: len(p)] == p), default=0)
        self.prompts.append(prompt)
        return {"prompt_tokens": len(prompt), "cached_tokens": cached, "completion_tokens": 1}


@pytest.fixture
def servers():
    with Server() as one, Server() as other:
        yield [one, other]


def cached_tokens(router, tokens, key):
    headers = {"Content-Type": "application/json", "X-SMG-Routing-Key": key}
    body = json.dumps({"input_ids": tokens}).encode()
    request = urllib.request.Request(f"{router.url}/generate", body, headers)
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)["meta_info"]["cached_tokens"]


def test_every_turn_of_eight_rollouts_finds_its_prefix(miles_tree, servers, tmp_path):
    bindings = bindings_named(ROUTER_BINDINGS)
    setup = RouterSetup([s.url for s in servers], bindings, (FEATURE,), (miles_tree,))
    with MilesRouterProcess(setup, tmp_path / "log") as router:
        for turn in range(1, 5):
            for number in range(8):
                tokens = [number] * 20 * turn
                found = cached_tokens(router, tokens, f"key-{number}")
                assert found == 20 * (turn - 1)
        assert all(server.prompts for server in servers)
        assert not router.roll_call.roll.failures
        roll, called = (
            router.roll_call.roll,
            calls()[MAIN]["tests/miles_main/test_request_routing.py"],
        )
        assert becomes(lambda: [set(row["consulted"]) for row in roll.rows()] == [called])
        assert {row["role"] for row in roll.rows()} == {"router"}


def test_the_plan_binds_the_router_and_leaves_the_sessions_key_to_miles(miles_tree):
    tree = Tree.at("miles", miles_tree)
    plan = make_plan(features(), ["request-routing"], {"miles": tree}, environment={})
    (decision,) = [r.decision for r in plan.rows_of("request-routing") if r.upstream == "miles"]
    assert isinstance(decision, Inject), decision
    assert {*ROUTER_BINDINGS, "routing/rollout-key"} <= set(decision.bindings)
    assert "routing/session-key" not in decision.bindings
    sent = [e.what for e in decision.evidence if "sends a key" in e.what]
    assert any(what.startswith("SessionCore.chat_completions") for what in sent)
