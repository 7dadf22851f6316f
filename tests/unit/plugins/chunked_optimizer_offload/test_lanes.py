"""What the lanes ask of CUDA, told by stand-ins of streams; their order is in test_pipeline."""

import torch
from adam_pair import parameters

from miles_periodic.plugins.chunked_optimizer_offload import ChunkedAdam
from miles_periodic.plugins.chunked_optimizer_offload.lanes import CudaLane, LaneMaker, PlainLane


class Stream:
    def __init__(self, device=None) -> None:
        self.device, self.calls = device, []

    def wait_event(self, event):
        self.calls.append(("wait", event))

    def synchronize(self):
        self.calls.append(("synchronize",))


class Event:
    def record(self, stream):
        stream.calls.append(("record", self))


def test_a_lane_records_and_waits_on_its_own_stream():
    stream, event = Stream(), Event()
    lane = CudaLane(stream)
    lane.record(event)
    lane.wait(event)
    lane.synchronize()
    assert stream.calls == [("record", event), ("wait", event), ("synchronize",)]


def test_the_step_lane_is_the_current_stream_of_each_step_and_the_copy_lanes_stay(monkeypatch):
    device, current = torch.device("cuda", 0), []
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda d: current[-1])
    maker = LaneMaker(device)
    current.append(Stream())
    first = maker.lanes()
    current.append(Stream())
    second = maker.lanes()
    assert [first.step.stream, second.step.stream] == current
    assert first.load is second.load and first.drain is second.drain
    assert len({id(s) for s in (first.load.stream, first.drain.stream, *current)}) == 4
    assert first.load.stream.device == device


def test_without_cuda_the_lanes_do_everything_at_once():
    lanes = LaneMaker(torch.device("cpu")).lanes()
    assert isinstance(lanes.load, PlainLane) and lanes.new_event() is None


def test_an_optimizer_on_the_cpu_touches_nothing_of_cuda(monkeypatch):
    for name in ("Stream", "Event", "current_stream", "synchronize"):
        monkeypatch.delattr(torch.cuda, name)
    (param,) = parameters(((10,),))
    optimizer = ChunkedAdam([param])
    param.grad = torch.ones(10)
    optimizer.step()
    optimizer.state_dict()
