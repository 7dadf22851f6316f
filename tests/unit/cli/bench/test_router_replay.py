"""`miles bench router-replay`: every form brings the same routes, and the ratios are of one run."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from miles_periodic.cli.bench import app
from miles_periodic.cli.bench.route_server import SequenceShape

SMALL = ["router-replay", "--held", "60", "--new", "4", "--layers", "3", "--top-k", "2"]


def measure(*options):
    done = CliRunner().invoke(app, [*SMALL, "--repeats", "1", "--json", *options])
    return done.exit_code, json.loads(done.stdout)


def test_a_delta_carries_the_new_rows_only_and_a_compact_one_a_byte_for_each_expert():
    _, result = measure("--experts", "16")
    full, delta, compact = (row["payload_bytes"] for row in result["rows"])
    assert (full, delta) == (4 * 64 * 3 * 2 * 4 // 3, 4 * 4 * 3 * 2 * 4 // 3)
    assert compact == (16 + 4 * 3 * 2 + 2) // 3 * 4


def test_a_missed_goal_is_an_exit_status_of_its_own():
    status, result = measure("--experts", "512")
    assert result["rows"][-1]["bytes_ratio"] < 100 and status == 1


def test_impossible_routes_are_refused():
    done = CliRunner().invoke(app, [*SMALL, "--experts", "3"])
    assert "more experts" in str(done.exception)


@pytest.mark.parametrize("experts", [16, 256, 384])
def test_the_benchs_routes_name_different_experts_in_every_row_and_layer(experts):
    routes = SequenceShape(50, 3, 8, experts).routes()
    assert routes.min() >= 0 and routes.max() < experts
    ordered = np.sort(routes, axis=-1)
    assert (ordered[..., 1:] != ordered[..., :-1]).all()
