"""Waves: every entry once, never over the bound, files filled evenly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_periodic.hooks.values import CheckpointEntry
from miles_periodic.plugins.chunked_checkpoint_staging import plan_waves

GROUPS = st.sampled_from(["", "hint"])
ENTRIES = st.lists(
    st.builds(
        lambda staged, extra, group: CheckpointEntry("x", staged + extra, staged, group),
        st.integers(0, 120),
        st.integers(0, 5),
        GROUPS,
    ),
    max_size=40,
)


def staged_bytes(wave, entries):
    return sum(entries[index].staged_bytes for file in wave for index in file)


def copied(wave, entries):
    return [index for file in wave for index in file if entries[index].staged_bytes]


@given(ENTRIES, st.integers(1, 100), st.integers(1, 4))
def test_every_entry_is_written_once(entries, bound, writers):
    plan = plan_waves(entries, staging_bytes=bound, num_writers=writers)
    listed = [index for wave in plan.waves for file in wave for index in file]
    assert sorted(listed) == list(range(len(entries)))


@given(ENTRIES, st.integers(1, 100), st.integers(1, 4))
def test_a_wave_is_over_the_bound_only_where_one_entry_alone_is(entries, bound, writers):
    plan = plan_waves(entries, staging_bytes=bound, num_writers=writers)
    assert plan.staging_bytes == bound
    for wave in plan.waves:
        assert staged_bytes(wave, entries) <= bound or len(copied(wave, entries)) == 1


@given(ENTRIES, st.integers(1, 100), st.integers(1, 4))
def test_no_wave_and_no_file_is_empty(entries, bound, writers):
    plan = plan_waves(entries, staging_bytes=bound, num_writers=writers)
    assert all(wave and all(wave) for wave in plan.waves)


@given(ENTRIES, st.integers(1, 100), st.integers(1, 4))
def test_a_wave_has_no_more_files_than_writers_or_groups(entries, bound, writers):
    plan = plan_waves(entries, staging_bytes=bound, num_writers=writers)
    for wave in plan.waves:
        groups = {entries[index].group for file in wave for index in file}
        assert len(wave) <= max(writers, len(groups))


@given(ENTRIES, st.integers(1, 100), st.integers(1, 4))
def test_entries_of_two_groups_share_no_file(entries, bound, writers):
    plan = plan_waves(entries, staging_bytes=bound, num_writers=writers)
    for wave in plan.waves:
        assert all(len({entries[index].group for index in file}) == 1 for file in wave)


@given(ENTRIES, st.integers(1, 100))
def test_no_two_waves_could_have_been_one(entries, bound):
    plan = plan_waves(entries, staging_bytes=bound, num_writers=1)
    sizes = [staged_bytes(wave, entries) for wave in plan.waves]
    within = sorted(size for size in sizes if 0 < size <= bound)
    assert len(within) < 2 or within[0] + within[1] > bound


def test_entries_over_the_bound_come_first_and_the_largest_before_the_others():
    entries = [CheckpointEntry(str(n), n, n) for n in (5, 30, 4, 20)]
    plan = plan_waves(entries, staging_bytes=10, num_writers=2)
    assert plan.waves[:2] == (((1,),), ((3,),))
    assert len(plan.waves) == 3


def test_entries_that_need_no_copy_do_not_make_a_wave_of_their_own():
    entries = [CheckpointEntry("host", 99, 0), CheckpointEntry("device", 7, 7)]
    plan = plan_waves(entries, staging_bytes=10, num_writers=2)
    assert plan.waves == (((0,), (1,)),)


def test_the_files_of_a_wave_are_filled_evenly():
    entries = [CheckpointEntry("x", size, size) for size in (4, 3, 2, 1)]
    (files,) = plan_waves(entries, staging_bytes=10, num_writers=2).waves
    assert sorted(sum(entries[i].num_bytes for i in file) for file in files) == [5, 5]


@pytest.mark.parametrize("bounds", [(0, 1), (1, 0)])
def test_a_bound_below_one_is_an_error(bounds):
    with pytest.raises(ValueError, match="≥ 1"):
        plan_waves([], staging_bytes=bounds[0], num_writers=bounds[1])
