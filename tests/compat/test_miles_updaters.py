"""What the updaters of a real Miles tell the servers, in place and otherwise.

The wheel is always there; Miles at git main runs where MILES_TREE names a checkout.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from miles_trees import LABELS, TREES

from miles_periodic.compat.matrix.called import calls

PROCESS = Path(__file__).parents[1] / "lines" / "updater_process.py"
TIMEOUT_SECONDS = 900
UPDATERS = ("colocated", "fsdp")


@functools.lru_cache
def told(line, mode):
    command = [sys.executable, str(PROCESS), str(TREES[line]), mode]
    environment = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(params=[(line, name) for line in TREES for name in UPDATERS], ids="-".join)
def updater(request):
    line, name = request.param
    return lambda mode: told(line, mode)[name]


def methods(calls):
    return [method for _, method, _ in calls]


@pytest.mark.parametrize("line", TREES)
def test_the_bindings_of_the_updaters_are_called_and_stand_on_file(line):
    called = calls()[LABELS[line]]["tests/compat/test_miles_updaters.py"]
    assert set(told(line, "in_place")["consulted"]) == called


def test_in_place_no_server_is_told_to_flush(updater):
    calls = updater("in_place")
    assert "flush_cache" not in methods(calls)
    assert not any(arguments.get("flush_cache") for _, _, arguments in calls)


def test_in_place_servers_pause_first_in_that_mode_and_go_on_last(updater):
    calls = updater("in_place")
    assert calls[0] == ["server", "pause_generation", {"mode": "in_place"}]
    assert methods(calls)[-1] == "continue_generation"
    assert "update_weights_from_tensor" in methods(calls)


def test_where_a_tree_opens_a_weight_update_it_stands_between_pause_and_weights(updater):
    names = methods(updater("in_place"))
    opened = [names.index(name) for name in ("begin_weight_update",) if name in names]
    assert all(0 < place < names.index("update_weights_from_tensor") for place in opened)


def test_in_other_modes_the_updater_flushes_as_it_did(updater):
    assert "flush_cache" in methods(updater("retract"))
