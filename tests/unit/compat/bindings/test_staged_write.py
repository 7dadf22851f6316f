"""One rank's share, wave by wave: the files, their names, and the first error."""

import io
import threading
from dataclasses import dataclass

import pytest
import torch

from miles_periodic.compat.bindings import staging_memory
from miles_periodic.compat.bindings.staged_write import (
    FileNotWritten,
    Share,
    checked,
    file_writer,
    write_in_waves,
)
from miles_periodic.hooks import PeriodicError
from miles_periodic.hooks.values import CheckpointWaves


@dataclass
class Index:
    """Of a write item."""

    fqn: str
    offset: tuple = (0,)


@dataclass
class Item:
    """What a planner asks to be written."""

    index: Index


def item(name, *offset):
    return Item(Index(name, offset))


def buckets():
    """Two of Megatron's buckets: an object and two tensors, and one tensor of a separate group."""
    first = [(item("a"), torch.ones(100)), (item("b", 3, 0), torch.zeros(200))]
    return [
        ("/out/__4_0.distcp", "__4_0.distcp", ([(item("o"), io.BytesIO(b"12345"))], first)),
        ("/out/own__4_1.distcp", "own__4_1.distcp", ([], [(item("c"), torch.ones(50))])),
    ]


@pytest.fixture
def written(monkeypatch):
    """The files that were written, by path: names of items, and what the tensors held."""
    monkeypatch.setattr(staging_memory, "lies_on_host", lambda tensor: False)
    return {}


def writer_into(written):
    def write(number, bucket):
        path, name, (objects, tensors) = bucket
        written[path] = [i.index.fqn for i, _ in (*objects, *tensors)]
        return [(name, i.index.fqn) for i, _ in (*objects, *tensors)]

    return write


def test_entries_say_what_is_written_and_what_is_copied(written):
    entries = Share(buckets()).entries
    assert [e.name for e in entries] == ["o", "a", "b at (3, 0)", "c"]
    assert [e.num_bytes for e in entries] == [5, 400, 800, 200]
    assert [e.staged_bytes for e in entries] == [0, 512, 1024, 256]
    assert [e.group for e in entries] == ["__4_", "__4_", "__4_", "own__4_"]


def test_files_are_numbered_over_the_waves_as_megatron_would_name_them(written):
    share = Share(buckets())
    plan = CheckpointWaves((((0, 2),), ((1,), (3,))))
    results = write_in_waves(share, plan, writer_into(written))
    assert written == {
        "/out/__4_0.distcp": ["o", "b"],
        "/out/__4_1.distcp": ["a"],
        "/out/own__4_2.distcp": ["c"],
    }
    assert sorted(results) == [0, 1]
    assert sorted(name for _, name in results[0] + results[1]) == ["a", "b", "c", "o"]


def test_without_a_plan_the_files_are_megatrons_own(written):
    share = Share(buckets())
    write_in_waves(share, checked(share.whole(), share), writer_into(written))
    assert written == {"/out/__4_0.distcp": ["o", "a", "b"], "/out/own__4_1.distcp": ["c"]}


def test_the_files_of_a_wave_are_written_side_by_side(written):
    meeting = threading.Barrier(2, timeout=120)

    def write(number, bucket):
        meeting.wait()
        return []

    write_in_waves(Share(buckets()), CheckpointWaves((((0, 1, 2), (3,)),)), write)


def test_after_an_error_no_later_wave_is_begun(written):
    seen = []

    def write(number, bucket):
        seen.append(number)
        if number == 1:
            raise FileNotWritten("no space")
        return []

    plan = CheckpointWaves((((0,),), ((1,),), ((2,),), ((3,),)))
    with pytest.raises(FileNotWritten, match="no space"):
        write_in_waves(Share(buckets()), plan, write)
    assert seen == [0, 1]


@pytest.mark.parametrize(
    "waves, found",
    [
        ((((0, 1, 2),),), "found 3 places"),
        ((((0, 1, 2, 3, 3),),), "found 5 places"),
        ((((0, 1, 2, 3), ()),), "an empty one"),
    ],
)
def test_a_plan_that_does_not_write_every_entry_once_is_refused(written, waves, found):
    with pytest.raises(PeriodicError, match=found):
        checked(CheckpointWaves(waves), Share(buckets()))


def test_a_wave_over_its_own_bound_is_refused(written):
    plan = CheckpointWaves((((0, 1, 2, 3),),), staging_bytes=1500)
    with pytest.raises(PeriodicError, match="at most 1500 bytes in wave 0, found 1792"):
        checked(plan, Share(buckets()))


def test_one_tensor_alone_may_be_over_the_bound(written):
    plan = CheckpointWaves((((0, 2),), ((1,), (3,))), staging_bytes=800)
    assert checked(plan, Share(buckets())) is plan


class Writer:
    """Megatron's writer of one file, as its processes and threads are handed it."""

    use_msc = False
    transforms = "transforms"

    def __init__(self, outcome):
        self.outcome = outcome

    def write_preloaded_data(self, transforms, number, bucket, results, pending, use_fsync):
        self.seen = (transforms, number, use_fsync)
        results.put((number, self.outcome))
        pending.get()
        pending.task_done()


def test_megatrons_file_writer_is_called_in_this_process_and_synced_to_the_disk():
    writer = Writer(["result"])
    assert file_writer(writer)(3, ("/out/x", "x", ([], []))) == ["result"]
    assert writer.seen == (["transforms"], 3, True)


def test_the_cause_of_an_unwritten_file_is_what_was_raised_first():
    full, later = OSError(28, "No space left on device"), RuntimeError("unexpected pos")
    later.__context__ = full
    with pytest.raises(FileNotWritten, match="/out/x cannot be written: OSError.*No space left"):
        file_writer(Writer(later))(3, ("/out/x", "x", ([], [])))
