"""The Rust router that pip installs, before servers that note who was sent to them."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

import pytest
from json_server import JsonServer

from miles_periodic.compat.bindings.routing_keys import HEADER, RANK_FIELDS
from miles_periodic.compat.cpu.free_port import free_port
from miles_periodic.plugins.request_routing.sticky import key_of

pytestmark = pytest.mark.real

UP_SECONDS = 240
NUM_ROLLOUTS, NUM_TURNS = 8, 5


class Server(JsonServer):
    """Answers whatever it is asked, and notes the requests; `seen`: (rollout, body) of each."""

    def __init__(self):
        self.seen = []
        super().__init__()

    def get(self, path):
        return {"model_path": "model", "is_generation": True, "dp_size": 1}

    def post(self, path, body):
        self.seen.append((body["input_ids"][0], body))
        return {"text": "", "meta_info": {}}

    @property
    def rollouts(self):
        return {rollout for rollout, _ in self.seen}


@pytest.fixture
def servers():
    made = [Server() for _ in range(4)]
    yield made
    for server in made:
        server.close()


@pytest.fixture
def route(tmp_path):
    """`route(flags, with_keys)` sends the turns of some rollouts through a router of their own."""
    started = []

    def run(flags, with_keys=True, **fields):
        port = free_port()
        command = [sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1"]
        command += ["--port", str(port), "--prometheus-port", str(free_port()), *flags]
        with (tmp_path / "router.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        started.append(process)
        url = f"http://127.0.0.1:{port}"
        wait(url, process)
        for turn in range(NUM_TURNS):
            for rollout in range(NUM_ROLLOUTS):
                key = key_of("rollout", f"sample-{rollout}") if with_keys else None
                generate(url, [rollout, turn], key, fields)

    yield run
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def wait(url, process):
    end = time.monotonic() + UP_SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            generate(url, [99], None, {})
            return
        except OSError:
            time.sleep(0.2)
    pytest.fail("the router did not come up")


def generate(url, tokens, key, fields):
    headers = {"Content-Type": "application/json"} | ({HEADER: key} if key else {})
    body = {"input_ids": tokens, "sampling_params": {"max_new_tokens": 1}, **fields}
    post = urllib.request.Request(f"{url}/generate", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(post, timeout=120):
        pass


def homes(servers):
    """For each rollout the number of servers that saw it."""
    return [
        sum(rollout in server.rollouts for server in servers) for rollout in range(NUM_ROLLOUTS)
    ]


def workers(servers):
    return ["--worker-urls", *(server.url for server in servers)]


def pair(servers):
    prefill = [p for n, s in enumerate(servers[:2]) for p in ("--prefill", s.url, str(9001 + n))]
    decode = [part for server in servers[2:] for part in ("--decode", server.url)]
    return ["--pd-disaggregation", *prefill, *decode]


def test_under_a_policy_that_reads_keys_every_rollout_has_one_home(servers, route):
    route([*workers(servers), "--policy", "manual"])
    assert homes(servers) == [1] * NUM_ROLLOUTS


def test_without_keys_the_same_policy_spreads_a_rollouts_turns(servers, route):
    route([*workers(servers), "--policy", "manual"], with_keys=False)
    assert sum(homes(servers)) > NUM_ROLLOUTS


def test_under_policies_of_the_roles_a_rollout_has_one_prefill_and_one_decode_server(
    servers, route
):
    route([*pair(servers), "--prefill-policy", "manual", "--decode-policy", "manual"])
    assert homes(servers[:2]) == homes(servers[2:]) == [1] * NUM_ROLLOUTS


def test_of_the_names_of_a_rank_the_router_hands_on_one(servers, route):
    route(workers(servers), **dict.fromkeys(RANK_FIELDS, 1))
    handed_on = {name for server in servers for _, body in server.seen for name in body}
    assert handed_on & set(RANK_FIELDS) == {"data_parallel_rank"}
