"""A rank's replays, filled by a real Miles's own code, alone and with our binding in.

THD and padded batches, context parallel 1 and 2, pipeline 1 and 2 with and without virtual
stages, tensor parallel 1 and 2 with sequence slices; Miles at git main also with contiguous slices.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from miles_trees import TREES

PROCESS = Path(__file__).parents[1] / "lines" / "fill_process.py"
TIMEOUT_SECONDS = 900


@pytest.fixture(scope="module", params=TREES)
def filled(request):
    command = [sys.executable, str(PROCESS), str(TREES[request.param])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_what_a_router_gets_is_what_miles_alone_gives_it_in_every_layout(filled):
    assert [each["layout"] for each in filled["layouts"] if not each["equal"]] == []
    assert len(filled["layouts"]) >= 120 and all(each["num_tensors"] for each in filled["layouts"])


def test_padding_occurs_in_every_layout_so_that_it_was_compared(filled):
    assert all(each["num_padded"] for each in filled["layouts"])


def test_a_rank_holds_its_own_layers_and_positions_at_the_width_of_an_id(filled):
    for each in filled["layouts"]:
        assert each["held_bytes"] * 4 == each["stock_bytes"] * each["itemsize"]


def test_a_router_of_multi_token_prediction_is_given_no_layers_routes(filled):
    assert filled["with_mtp"] == [3, 3, 3, 3, 3, 3, 0]
