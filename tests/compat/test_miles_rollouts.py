"""Every `/generate` path of a real Miles over a small server: what is asked for, and what is held.

The wheel is always there; Miles at git main runs where MILES_TREE names a checkout.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from miles_trees import LABELS, TREES
from small_server import routes

from miles_periodic.compat.matrix.called import calls

PROCESS = Path(__file__).parents[1] / "lines" / "rollout_process.py"
TIMEOUT_SECONDS = 900

CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
PATHS = ("single_turn", "older")

TWO_CALLS = [{"text": CALL}, {"text": CALL, "num_tokens": 3}, {"num_tokens": 1}]
CASES = {
    "three turns": ("multi_turn", [TWO_CALLS]),
    "an update between turns": (
        "multi_turn",
        [[{**turn, "version": version} for version, turn in enumerate(TWO_CALLS)]],
    ),
    "no new tokens": ("multi_turn", [[{"text": CALL}, {"num_tokens": 0}]]),
    "the last token too": ("multi_turn", [[{"text": CALL, "extra_row": True}, {}]]),
    "lost rows": ("multi_turn", [[{"text": CALL}, {"num_rows": 1}]]),
    "no routes": ("multi_turn", [[{"num_rows": None}]]),
    "aborted turn": (
        "multi_turn",
        [[{"text": CALL}, {"finish": "abort", "num_tokens": 4, "num_rows": 4}]],
    ),
    "somebody else's": ("somebody_elses", [[{}, {}]]),
} | {
    f"{name}, {path}": (path, plans)
    for path in PATHS
    for name, plans in {
        "one turn": [[{"num_tokens": 3}]],
        "resumed": [[{"finish": "abort"}], [{"version": 1, "num_tokens": 3}]],
        "aborted in the queue": [[{"finish": "abort", "num_tokens": 0, "num_rows": None}], [{}]],
        "aborted with a gap": [[{"finish": "abort", "num_tokens": 4, "num_rows": 5}], [{}]],
    }.items()
}


@pytest.fixture(scope="module", params=TREES)
def line(request):
    return request.param


@pytest.fixture(scope="module")
def tree(line):
    return TREES[line]


def run(tree, features, cases):
    command = [sys.executable, str(PROCESS), str(tree), features, json.dumps(cases)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def on(tree):
    return run(tree, "on", CASES)


@pytest.fixture(scope="module")
def off(tree):
    whole = ("three turns", "no new tokens", "one turn, single_turn", "one turn, older")
    return run(tree, "off", {name: CASES[name] for name in whole})


def test_the_bindings_of_every_path_are_called_and_stand_on_file(on, off, line):
    called = calls()[LABELS[line]]["tests/compat/test_miles_rollouts.py"]
    assert set(on["consulted"]) == called and off["consulted"] == []


def rows(tokens, version=0):
    return routes(tokens, version)[:-1].tolist()


@pytest.mark.parametrize(
    "case", ["three turns", "no new tokens", "one turn, single_turn", "one turn, older"]
)
def test_the_sample_is_the_one_that_miles_makes_alone_but_for_the_dtype(on, off, case):
    (ours,), (stock,) = on[case]["samples"], off[case]["samples"]
    assert stock["dtype"] == "int32" and ours.pop("dtype") == "uint8"
    stock.pop("dtype")
    assert ours == stock


def test_each_turn_asks_only_for_rows_that_are_not_held(on, off):
    requests = on["three turns"]["requests"]
    ends = [0, *(len(r["prompt"]) for r in requests)]
    held = [0] + [len(r["prompt"]) + n - 1 for r, n in zip(requests, (2, 3), strict=False)]
    assert [r["start"] for r in requests] == held and ends[1] < held[1]
    assert all(r["start"] == 0 for r in off["three turns"]["requests"])


def test_rows_that_sampled_a_turn_stay_through_a_weight_update(on):
    sample, requests = (on["an update between turns"][k] for k in ("samples", "requests"))
    tokens = sample[0]["tokens"]
    starts = [r["start"] for r in requests] + [len(tokens) - 1]
    expected = []
    for version, (first, end) in enumerate(zip(starts, starts[1:], strict=False)):
        expected += rows(tokens, version)[first:end]
    assert sample[0]["rows"] == expected


def test_lost_rows_end_the_rollout_with_the_request_and_the_rows(on):
    assert "request-1, rows [6, 7): 1 rows came where" in on["lost rows"]["error"]


def test_a_server_that_returns_no_routes_ends_the_rollout(on):
    assert "0 rows came where" in on["no routes"]["error"]


def test_an_aborted_turn_is_cut_back_to_its_last_known_row_in_every_field(on):
    (sample,) = on["aborted turn"]["samples"]
    assert sample["status"] == "aborted"
    assert len(sample["rows"]) == len(sample["tokens"]) - 1 == 10
    lengths = {len(sample["log_probs"]), len(sample["loss_mask"]), sample["response_length"]}
    assert lengths == {len(sample["tokens"]) - 5}
    assert sample["response"].split() == [str(token) for token in sample["tokens"][5:]]


def test_a_generate_function_of_a_user_still_decodes_what_it_gets(on):
    (sample,) = on["somebody else's"]["samples"]
    assert sample["rows"] == rows(sample["tokens"])
    assert [r["start"] for r in on["somebody else's"]["requests"]] == [0, 6]


@pytest.mark.parametrize("path", PATHS)
def test_a_resumed_sample_keeps_the_rows_that_sampled_it(on, path):
    first, second = on[f"resumed, {path}"]["samples"]
    end = len(first["rows"])
    assert second["rows"][:end] == first["rows"] == rows(first["tokens"])
    assert second["rows"][end:] == rows(second["tokens"], version=1)[end:]
    assert on[f"resumed, {path}"]["requests"][1]["start"] == end


@pytest.mark.parametrize("path", PATHS)
def test_a_sample_that_was_aborted_before_it_ran_starts_over(on, path):
    first, second = on[f"aborted in the queue, {path}"]["samples"]
    assert first["rows"] == [] and first["response_length"] == 0
    assert second["rows"] == rows(second["tokens"])


@pytest.mark.parametrize("path", PATHS)
def test_tokens_behind_a_gap_are_sampled_again(on, path):
    first, second = on[f"aborted with a gap, {path}"]["samples"]
    assert len(first["tokens"]) == 6 and first["response_length"] == len(first["log_probs"]) == 1
    assert on[f"aborted with a gap, {path}"]["requests"][1]["prompt"] == first["tokens"]
    assert second["rows"] == rows(second["tokens"])
