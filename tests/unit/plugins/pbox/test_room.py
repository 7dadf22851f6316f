"""What a machine has for sandboxes, against what is asked for."""

import os

import pytest
from pydantic import ValidationError

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.limits import MIB, Limits
from miles_periodic.plugins.pbox.node.proof import refuse_unknown_limits
from miles_periodic.plugins.pbox.node.room import Room, room_for

MACHINE_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
ROOM = Room(frozenset({2, 3}), 1024 * MIB)


class Groups:
    """Groups above the sandboxes' that have these."""

    def __init__(self, cpus="", *memory_bytes):
        self.above = lambda: (cpus, [*memory_bytes])


@pytest.fixture(autouse=True)
def given(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})


def test_where_nothing_is_asked_for_sandboxes_have_what_there_is():
    assert room_for("", None, Groups()) == Room(frozenset(range(4)), MACHINE_BYTES)
    assert room_for("", None, Groups("1-9", 900 * MIB)) == Room(frozenset({1, 2, 3}), 900 * MIB)


def test_what_is_asked_for_is_what_sandboxes_have():
    assert room_for("2-3", 512 * MIB, Groups("0-7")) == Room(frozenset({2, 3}), 512 * MIB)


@pytest.mark.parametrize("cpus, groups", [("3-4096", Groups()), ("1,2", Groups("2-3"))])
def test_cpus_that_are_not_there_or_not_given_are_refused(cpus, groups):
    with pytest.raises(PeriodicError, match=f"(?s)--cpus {cpus}.*--cpus-per-task"):
        room_for(cpus, None, groups)


@pytest.mark.parametrize("above", [Groups(), Groups("", 2 * MACHINE_BYTES, 300 * MIB)])
def test_memory_that_the_machine_or_a_group_above_lacks_is_refused(above):
    with pytest.raises(PeriodicError, match="Give a lower --memory-mib"):
        room_for("", MACHINE_BYTES + MIB, above)


def test_a_limit_that_could_never_be_reached_is_refused():
    ROOM.refuse_beyond(Limits(memory_bytes=1024 * MIB, num_cpus=2.0, disk_bytes=1024 * MIB))
    for name, value in {"memory_bytes": 1025 * MIB, "disk_bytes": 1 << 40, "num_cpus": 2.1}.items():
        with pytest.raises(PeriodicError, match=f"Ask for a lower {name}"):
            ROOM.refuse_beyond(Limits(**{name: value}))


@pytest.mark.parametrize("name, value", [
    ("num_cpus", 0.009), ("num_processes", 1 << 23), ("num_files", 1 << 31),
    ("num_open_files", 1 << 21),
])  # fmt: skip
def test_limits_that_the_kernel_does_not_take_are_refused_by_name(name, value):
    with pytest.raises(ValidationError, match=name):
        Limits(**{name: value})


def test_a_limit_to_leave_unenforced_must_be_one():
    refuse_unknown_limits({"cpu-set", "memory"})
    with pytest.raises(PeriodicError, match="Write 'cpu-time' instead of 'cputime'"):
        refuse_unknown_limits({"memory", "cputime"})
