"""The example plugin of the docs, installed as a stranger would, inside of Miles's own router."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from becoming import becomes
from json_server import JsonServer

from miles_periodic.compat.catalog import bindings_named
from miles_periodic.compat.cpu.miles_router import MilesRouterProcess, RouterSetup
from miles_periodic.compat.manifest import FeatureReference

pytestmark = pytest.mark.real

EXAMPLE = Path(__file__).parents[2] / "examples" / "acme"
INSTALL = "--quiet --no-deps --no-index --no-build-isolation --disable-pip-version-check"


class Server(JsonServer):
    """A server that reports how full its KV cache is, and answers with its own name."""

    def __init__(self, kv_use):
        self.kv_use = kv_use
        self.num_reads = 0
        super().__init__()

    def get(self, path):
        if not path.startswith("/v1/loads"):
            return {"weight_version": "1"}
        self.num_reads += 1
        return {
            "loads": [{"num_running_reqs": 1, "num_waiting_reqs": 0, "token_usage": self.kv_use}]
        }

    def post(self, path, body):
        return {"server": self.url}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder into which pip installed a copy of the example, and nothing else."""
    folder = tmp_path_factory.mktemp("acme")
    source = folder / "acme"
    source.mkdir()
    for name in ("pyproject.toml", "acme_miles.py"):
        (source / name).write_bytes((EXAMPLE / name).read_bytes())
    command = [sys.executable, "-m", "pip", "install", *INSTALL.split(), "--target"]
    subprocess.run([*command, folder / "site", source], check=True, timeout=300)
    return folder / "site"


def test_miless_router_asks_it_for_the_server(site, tmp_path):
    with Server(0.8) as full, Server(0.2) as roomy:
        reference = FeatureReference("roomiest-server", "acme_miles:RoomiestServer", {})
        bindings = bindings_named(("routing/request", "routing/server"))
        setup = RouterSetup([full.url, roomy.url], bindings, (reference,), path=(site,))
        with MilesRouterProcess(setup, tmp_path / "router.log") as router:
            answered_by(router)  # The first request starts the reading.
            wait_until_read(full, roomy)
            assert [answered_by(router) for _ in range(6)] == [roomy.url] * 6
            full.kv_use, roomy.kv_use = 0.1, 0.95
            wait_until_read(full, roomy)
            assert [answered_by(router) for _ in range(6)] == [full.url] * 6


def wait_until_read(*servers):
    """Until the router knows what each server reports now.

    A server's second reading from here on begins after the first one was taken in.
    """
    wanted = [(server, server.num_reads + 2) for server in servers]
    assert becomes(lambda: all(server.num_reads >= count for server, count in wanted))


def answered_by(router):
    """The server to which the router sends one request."""
    request = urllib.request.Request(f"{router.url}/generate", b'{"input_ids": [1, 2]}')
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)["server"]
