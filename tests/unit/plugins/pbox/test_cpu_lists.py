"""Lists of CPUs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_periodic.plugins.pbox.cpu_lists import parse_cpus, written_cpus


@pytest.mark.parametrize("text, cpus", [("0", {0}), ("0-2,5", {0, 1, 2, 5}), ("3, 1", {1, 3})])
def test_a_list_of_cpus_is_read_as_the_kernel_writes_it(text, cpus):
    assert parse_cpus(text) == cpus


@pytest.mark.parametrize("text", ["", "a", "1-", "1,,2"])
def test_what_is_no_list_of_cpus_is_refused(text):
    with pytest.raises(ValueError):
        parse_cpus(text)


@given(st.sets(st.integers(0, 300), min_size=1))
def test_a_list_that_was_written_is_read_as_it_was(cpus):
    assert parse_cpus(written_cpus(cpus)) == cpus


def test_a_range_that_runs_backwards_is_refused():
    with pytest.raises(ValueError, match="'9-1' runs backwards"):
        parse_cpus("0,9-1")
