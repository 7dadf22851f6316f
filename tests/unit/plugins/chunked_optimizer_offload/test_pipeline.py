"""What the events order, shown on lanes that run in any order that the events allow."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queued_lanes import QueuedDevice

from miles_periodic.plugins.chunked_optimizer_offload.lanes import Lanes, PlainLane
from miles_periodic.plugins.chunked_optimizer_offload.pipeline import Pipeline


class Slots:
    """Notes what happens, and refuses what would read or overwrite the wrong thing."""

    def __init__(self, num_slots: int) -> None:
        self.slots: list[tuple] = [("free",)] * num_slots
        self.host: dict[int, int] = {}
        self.happened: list[tuple[str, int]] = []

    def load(self, chunk: int) -> None:
        self._take(chunk, "free", "load")
        self._put(chunk, ("loaded", chunk, self.host.get(chunk, 0)), "load")

    def step(self, chunk: int) -> None:
        count = self._take(chunk, "loaded", "step")
        self._put(chunk, ("stepped", chunk, count + 1), "step")

    def drain(self, chunk: int) -> None:
        self.host[chunk] = self._take(chunk, "stepped", "drain")
        self._put(chunk, ("free",), "drain")

    def _take(self, chunk: int, state: str, what: str) -> int:
        found = self.slots[chunk % len(self.slots)]
        assert found[0] == state, f"{what} of chunk {chunk} found {found}"
        assert found[1:2] in ((), (chunk,)), f"{what} of chunk {chunk} found {found}"
        return found[-1]

    def _put(self, chunk: int, after: tuple, what: str) -> None:
        self.slots[chunk % len(self.slots)] = after
        self.happened.append((what, chunk))


@settings(max_examples=40)
@given(
    num_slots=st.integers(1, 5),
    steps=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    seed=st.integers(0, 1 << 30),
    settle=st.booleans(),
)
def test_whatever_the_lanes_speeds_no_slot_and_no_host_memory_is_used_too_early(
    num_slots, steps, seed, settle
):
    device, slots = QueuedDevice(seed), Slots(num_slots)
    pipeline = Pipeline(num_slots, device.made.new_event)
    for num_chunks in steps:
        pipeline.run(device.made, num_chunks, slots.load, slots.step, slots.drain)
        if settle:
            device.made.drain.synchronize()
    device.made.synchronize()
    expected = [sum(num > chunk for num in steps) for chunk in range(max(steps))]
    assert [slots.host[chunk] for chunk in range(max(steps))] == expected


@settings(max_examples=40)
@given(num_slots=st.integers(2, 5), num_chunks=st.integers(1, 9), seed=st.integers(0, 1 << 30))
def test_when_the_drain_lane_is_at_rest_all_lanes_are(num_slots, num_chunks, seed):
    device, slots = QueuedDevice(seed), Slots(num_slots)
    pipeline = Pipeline(num_slots, device.made.new_event)
    pipeline.run(device.made, num_chunks, slots.load, slots.step, slots.drain)
    device.made.drain.synchronize()
    assert len(slots.happened) == 3 * num_chunks


@pytest.mark.parametrize(
    ("lane", "left_out"), [("step", "loaded"), ("drain", "stepped"), ("load", "drained")]
)
def test_the_stand_in_sees_it_when_a_wait_is_left_out(lane, left_out):
    def go(seed):
        device, slots = QueuedDevice(seed), Slots(3)
        pipeline = Pipeline(3, device.made.new_event)
        events, waiting = getattr(pipeline, f"_{left_out}"), getattr(device.made, lane)
        wait = waiting.wait
        waiting.wait = lambda event: None if event in events else wait(event)
        pipeline.run(device.made, 7, slots.load, slots.step, slots.drain)
        device.made.synchronize()

    with pytest.raises(AssertionError, match="found"):
        for seed in range(50):
            go(seed)


def test_a_load_runs_beside_the_step_before_it_and_the_drain_before_that():
    device, slots = QueuedDevice(0), Slots(3)
    Pipeline(3, device.made.new_event).run(device.made, 4, slots.load, slots.step, slots.drain)
    load, step, drain = device.all
    for lane, entries in ((load, 2), (step, 3)):
        for _ in range(entries):
            assert lane.can_go_on()
            lane.go_on()
    # Chunk 0 is stepped; 1 can come in, and 0 can go out, at the same time.
    assert load.can_go_on() and drain.can_go_on() and not step.queue[0][1].happened


def plain() -> Lanes:
    lane = PlainLane()
    return Lanes(lane, lane, lane, lambda: None)


def test_without_a_device_the_same_order_runs_at_once():
    slots = Slots(3)
    Pipeline(3, plain().new_event).run(plain(), 4, slots.load, slots.step, slots.drain)
    assert slots.happened[:6] == [
        ("load", 0), ("load", 1), ("load", 2), ("step", 0), ("drain", 0), ("load", 3),
    ]  # fmt: skip


@pytest.mark.parametrize(("what", "written"), [("load", 2), ("step", 3), ("drain", 4)])
def test_it_knows_which_chunk_failed_and_how_many_may_be_written(what, written):
    slots = Slots(1)

    def fail(chunk):
        if chunk == 3:
            raise ZeroDivisionError
        getattr(slots, what)(chunk)

    works = {w: getattr(slots, w) for w in ("load", "step", "drain")} | {what: fail}
    pipeline = Pipeline(1, plain().new_event)
    with pytest.raises(ZeroDivisionError):
        pipeline.run(plain(), 5, **works)
    assert (pipeline.chunk, pipeline.num_written) == (3, max(written, 3))
