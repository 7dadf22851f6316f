"""What may run beside what, where two workers share the tests."""

import re
from pathlib import Path

import lanes
import pytest
from lanes import LIGHT, RUNS, SERVERS, WHOLE_RUNS, lane_of, place_of

TESTS = Path(__file__).parents[1]
REAL_MARK = re.compile(r"^ *(@|pytestmark = )pytest\.mark\.real$", re.MULTILINE)
FILES = sorted(str(path.relative_to(TESTS.parent)) for path in TESTS.rglob("test_*.py"))


def test_a_file_of_real_tests_that_nobody_listed_stands_in_the_lane_of_the_whole_runs():
    assert lane_of("tests/real/test_new.py") == WHOLE_RUNS
    assert {lane_of(file) for file in RUNS} == {WHOLE_RUNS}


def test_a_file_that_starts_nothing_is_a_lane_of_its_own():
    assert lane_of("tests/unit/test_lanes.py") == "tests/unit/test_lanes.py"


def test_whole_runs_begin_first_and_servers_last_the_longest_before_the_others():
    order = sorted(FILES, key=place_of)
    assert tuple(order[: len(RUNS)]) == RUNS
    assert tuple(order[-len(SERVERS) :]) == SERVERS


@pytest.mark.parametrize("file", [*RUNS, *LIGHT, *SERVERS])
def test_what_is_listed_exists(file):
    assert Path(file).name in {Path(each).name for each in FILES}


def test_real_tests_outside_their_folders_are_listed():
    """Otherwise they would run beside whole runs."""
    elsewhere = {file for file in FILES if not file.startswith(lanes.REAL)}
    real = {file for file in elsewhere if REAL_MARK.search((TESTS.parent / file).read_text())}
    assert real and real <= {*SERVERS, *LIGHT}


def test_the_scheduler_gives_out_lanes_by_the_file_of_a_test():
    scheduler = lanes.Lanes.__new__(lanes.Lanes)
    assert scheduler._split_scope(f"{RUNS[1]}::test_x[a::b]") == WHOLE_RUNS
    assert scheduler._split_scope("tests/unit/test_lanes.py::A::test") == "tests/unit/test_lanes.py"
