"""A real Miles that rolls out six turns over a real SGLang server, with the feature and without."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from miles_trees import TREES

from miles_periodic.compat.cpu import tiny_model
from miles_periodic.compat.cpu.sglang_server import ServerSetup, SGLangServer

PROCESS = Path(__file__).parents[1] / "lines" / "rollout_process.py"
TIMEOUT_SECONDS = 600

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    tiny_model.write(folder / "model")
    with SGLangServer(ServerSetup(folder / "model"), folder / "server.log") as running:
        yield running


def rollout(tree, features, server):
    cases = json.dumps({"six turns": ("several_turns", server.port)})
    command = [sys.executable, str(PROCESS), str(tree), features, cases]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])["six turns"]


@pytest.fixture(scope="module", params=TREES)
def pair(request, server):
    tree = TREES[request.param]
    return rollout(tree, "on", server), rollout(tree, "off", server)


def test_six_turns_of_deltas_make_the_rows_that_full_answers_have(pair):
    ours, stock = (each["samples"][0] for each in pair)
    assert len(ours["rows"]) == len(ours["tokens"]) - 1 > 6 * 8
    assert ours["tokens"] == stock["tokens"] and ours["rows"] == stock["rows"]


def test_bytes_follow_the_new_rows_and_not_the_history(pair):
    ours, stock = (each["requests"] for each in pair)
    assert [r["start"] for r in stock] == [0] * 6
    later = [r["bytes"] for r in ours[1:]]
    assert max(later) == min(later) < stock[-1]["bytes"] / 5
