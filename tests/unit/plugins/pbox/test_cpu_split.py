"""Two disjoint sets of a job's CPUs."""

import os

import pytest

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.cpu_split import split


def topology(folder, cores):
    for siblings in cores:
        for cpu in siblings:
            file = folder / f"cpu{cpu}/topology/thread_siblings_list"
            file.parent.mkdir(parents=True)
            file.write_text(",".join(map(str, siblings)) + "\n")
    return folder


@pytest.fixture
def given(monkeypatch):
    return lambda cpus: monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(cpus))


def test_sandboxes_get_whole_cores_and_the_command_the_others(given, tmp_path):
    given(range(8))
    cores = topology(tmp_path, [(0, 4), (1, 5), (2, 6), (3, 7)])
    both = split(3, cores)
    assert (both.sandboxes, both.trainer) == ({2, 3, 6, 7}, {0, 1, 4, 5})


def test_half_a_core_that_the_job_was_given_is_a_core(given, tmp_path):
    given([0, 1, 2])
    both = split(1, topology(tmp_path, [(0, 4), (1, 5), (2, 6)]))
    assert (both.sandboxes, both.trainer) == ({2}, {0, 1})


def test_a_machine_that_tells_nothing_of_its_cores_has_one_per_cpu(given, tmp_path):
    given([3, 5])
    assert split(1, tmp_path).sandboxes == {5}


@pytest.mark.parametrize("cpus, number", [([0], 1), ([0, 1], 2), ([0, 1], 0)])
def test_nothing_is_split_where_one_side_would_have_nothing(given, tmp_path, cpus, number):
    given(cpus)
    with pytest.raises(PeriodicError, match="--cpus-per-task"):
        split(number, tmp_path)
