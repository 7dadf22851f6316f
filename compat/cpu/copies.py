"""Two places that rely on a GPU-to-host move being a copy; routing replay is wrong without.

On a CPU `tensor.to("cpu")` returns the tensor itself. Where upstream overwrites one end while the
other is still in use, the move has to be made a copy again. Both faults are silent: only Miles's
own check (`--ci-test`, miles/utils/replay_base.py:150) sees them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from miles_periodic.compat.cpu.stand_in import StandIn, replace


def routes_leave_the_forward_buffer(capturer: ModuleType) -> None:
    """Copy a step's routes out of the buffer that the next step writes.

    Symptom: each generated token carries the routes of its successor, and some prompt rows those
    of a decode step. Trigger: sglang/srt/layers/moe/routed_experts_capturer.py:48 moves a view of
    the forward buffer "to the CPU" without blocking and stores it one step later (`finalize`),
    after the overlap scheduler has already run the next forward. Safe: it is the copy that the
    same line makes on a GPU.
    """

    def make(native: Callable[..., Any]) -> Callable[..., Any]:
        def copy_to_cpu(self: Any) -> None:
            native(self)
            self.out_cache_loc = self.out_cache_loc.clone()
            self.routed_experts = self.routed_experts.clone()

        return copy_to_cpu

    replace(capturer, "RoutedExpertsOutput.copy_to_cpu", make)


def replayed_routes_are_copies(replay_base: ModuleType) -> None:
    """Hand out a copy of the recorded routes.

    Symptom: padding rows pass the first replay and are counted as mismatches in the second.
    Trigger: miles/utils/replay_base.py:98 fills padding rows (-1) in what `pop_forward` (line 36)
    and `pop_backward` (line 41) return, which on a CPU is the record itself. Safe: as above.
    """

    def make(native: Callable[..., Any]) -> Callable[..., Any]:
        def pop(self: Any) -> Any:
            return native(self).clone()

        return pop

    replace(replay_base, "Replay.pop_forward", make)
    replace(replay_base, "Replay.pop_backward", make)


STAND_INS = (
    StandIn(
        name="copies/captured-routes",
        module="sglang.srt.layers.moe.routed_experts_capturer",
        apply=routes_leave_the_forward_buffer,
        why="The routes of a step are kept as a view of a buffer that the next step overwrites.",
    ),
    StandIn(
        name="copies/replayed-routes",
        module="miles.utils.replay_base",
        apply=replayed_routes_are_copies,
        why="Replay fills the padding rows of its record in place, where a GPU has a copy.",
        process="trainer",
    ),
)
