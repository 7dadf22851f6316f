"""Moves to the host that a CPU has to turn back into copies."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from miles_periodic.compat.cpu import copies  # noqa: E402


class RoutedExpertsOutput:
    """SGLang's, as far as the stand-in sees it: a view of the forward buffer."""

    def __init__(self, out_cache_loc, routed_experts) -> None:
        self.out_cache_loc = out_cache_loc
        self.routed_experts = routed_experts

    def copy_to_cpu(self):
        self.out_cache_loc = self.out_cache_loc.to("cpu", non_blocking=True)
        self.routed_experts = self.routed_experts.to("cpu", non_blocking=True)


class Replay:
    """Miles's, as far as the stand-in sees it."""

    def __init__(self, recorded) -> None:
        self.recorded = recorded

    def pop_forward(self):
        return self.recorded.to("cpu")

    def pop_backward(self):
        return self.recorded.to("cpu")


def subclass_of(kind: type) -> type:
    return type(kind.__name__, (kind,), {})


def test_the_routes_of_a_step_survive_the_next_step():
    output_type = subclass_of(RoutedExpertsOutput)
    copies.routes_leave_the_forward_buffer(
        SimpleNamespace(__name__="capturer", RoutedExpertsOutput=output_type)
    )
    forward_buffer = torch.tensor([[1, 2], [3, 4]])
    output = output_type(torch.tensor([7]), forward_buffer[:1])
    output.copy_to_cpu()
    forward_buffer.fill_(9)
    assert output.routed_experts.tolist() == [[1, 2]]


@pytest.mark.parametrize("pop", ["pop_forward", "pop_backward"])
def test_padding_filled_in_a_replayed_step_does_not_reach_the_record(pop):
    replay_type = subclass_of(Replay)
    copies.replayed_routes_are_copies(SimpleNamespace(__name__="replay_base", Replay=replay_type))
    replay = replay_type(torch.tensor([[-1, -1]]))
    getattr(replay, pop)().fill_(0)
    assert replay.recorded.tolist() == [[-1, -1]]
