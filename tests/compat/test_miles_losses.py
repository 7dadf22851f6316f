"""A real Miles's log-probabilities, entropies and whole losses, from logits and without them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from miles_trees import LABELS, TREES
from patched_trees import PATCHED, WAYS, patched_copy

from miles_periodic.compat.matrix.called import calls

PROCESS = Path(__file__).parents[1] / "lines" / "miles_loss_process.py"
TIMEOUT_SECONDS = 900


@pytest.fixture(
    scope="module", params=[(tree, way) for tree in TREES for way in WAYS], ids="-".join
)
def computed(request, tmp_path_factory):
    label, way = request.param
    tree, words = TREES[label], []
    if way == "patched":
        folder = tmp_path_factory.mktemp("patched")
        tree = patched_copy("miles", tree, "fused-linear-cross-entropy", folder)
        words = [PATCHED]
    command = [sys.executable, "-W", "ignore", str(PROCESS), str(tree), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "computed", [(tree, "injected") for tree in TREES], ids="-".join, indirect=True
)
def test_the_binding_is_called_and_stands_on_file(computed, request):
    line, _ = request.node.callspec.params["computed"]
    called = calls()[LABELS[line]]["tests/compat/test_miles_losses.py"]
    assert set(computed["consulted"]) == called


def test_log_probabilities_and_entropies_are_miles_own_in_every_layout(computed):
    assert len(computed["layouts"]) == 12
    for each in computed["layouts"]:
        assert each["same_lengths"] and each["keys"] == ["entropy", "log_probs"], each
        assert each["log_probs"] < 1e-5 and each["entropy"] < 1e-5, each


def test_context_parallel_ranks_share_all_log_probabilities_between_them(computed):
    of = {tuple(each["layout"]): each["num_log_probs"] for each in computed["layouts"]}
    for layout in ("thd", "bshd"):
        assert of[layout, 0, 2, 1.0] + of[layout, 1, 2, 1.0] == of[layout, 0, 1, 1.0] == 26


def test_gradients_are_exact_where_miles_own_are_rounded_to_bf16(computed):
    for each in computed["layouts"]:
        assert each["our_gradients_from_exact"] < 1e-5, each
        assert each["gradients"] < 0.01 and each["stock_gradients_from_exact"] < 0.01, each


def test_whole_losses_and_what_they_log_are_miles_own(computed):
    for each in computed["losses"]:
        stock, ours = each["value"]
        assert ours == pytest.approx(stock, rel=1e-5, abs=1e-6), each
        assert each["log"][1] == pytest.approx(each["log"][0], rel=1e-4, abs=1e-6), each
        assert each["gradients"] < 0.01, each


def test_a_micro_batch_without_a_response_has_a_loss_that_can_be_differentiated(computed):
    (empty,) = (each for each in computed["losses"] if each["loss"][2])
    assert empty["value"] == [0.0, 0.0] and empty["gradients"] == 0.0


def test_a_model_that_made_logits_after_all_is_an_error_that_says_so(computed):
    assert "although it was to make none" in computed["made_anyway"]
    assert "-fused-linear-cross-entropy" in computed["made_anyway"]
