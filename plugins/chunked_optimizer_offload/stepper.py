"""One step over host memory: the plan, the workspace and the pipeline, kept from step to step."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch

from miles_periodic.plugins.chunked_optimizer_offload.gradients import Stepped
from miles_periodic.plugins.chunked_optimizer_offload.lanes import LaneMaker, Lanes
from miles_periodic.plugins.chunked_optimizer_offload.layout import aligned
from miles_periodic.plugins.chunked_optimizer_offload.pipeline import Pipeline
from miles_periodic.plugins.chunked_optimizer_offload.prepared import (
    PreparedChunk,
    PreparedPiece,
    SteppedPiece,
    prepare,
)
from miles_periodic.plugins.chunked_optimizer_offload.residency import Residency
from miles_periodic.plugins.chunked_optimizer_offload.rules import Rule, StepPiece
from miles_periodic.plugins.chunked_optimizer_offload.schedule import plan_chunks
from miles_periodic.plugins.chunked_optimizer_offload.slots import Costs, fit_slots
from miles_periodic.plugins.chunked_optimizer_offload.workspace import MASTER, Workspace

#: Into how many chunks a step is cut where no `chunk_bytes` says it. The first load and the last
#: drain overlap nothing; of so many chunks that is little.
NUM_CHUNKS = 32
#: Elements that such a chunk has at least: copies of fewer wait for the host more than they move.
SHORTEST = 1 << 20

RESTART = "Start again from the last checkpoint."
RESTORE = (
    "Start again from the last checkpoint, or load masters, state and weights here and call "
    "mark_restored()."
)

OnStepped = Callable[[Sequence[SteppedPiece]], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a user gives. chunk_bytes: None for as many as let four chunks into the workspace.

    Raises TypeError on what is no whole number.
    """

    workspace_bytes: int
    chunk_bytes: int | None

    def __post_init__(self) -> None:
        operator.index(self.workspace_bytes)
        operator.index(self.chunk_bytes or 0)


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a step moved. Bytes are those of each direction; both together are twice as many."""

    num_chunks: int = 0
    num_pieces: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    workspace_bytes: int = 0


class StepFailed(RuntimeError):
    """A step broke off.

    chunk: the one that failed, of num_chunks. half_stepped: whether stepped masters were already
    written back or handed to `on_stepped`, so that masters, moments and what is made of them belong
    to two different steps. remedy: one sentence, for a half step.
    """

    def __init__(
        self, chunk: int, num_chunks: int, half_stepped: bool, error: BaseException, remedy: str
    ) -> None:
        self.chunk, self.num_chunks, self.half_stepped = chunk, num_chunks, half_stepped
        state = (
            "The optimizer is half stepped: chunks before it are stepped, the others are not, no "
            f"counter was raised, and weights may be ahead of their masters. {remedy}"
            if half_stepped
            else "Nothing was written back: masters and state are those from before the step."
        )
        problem = f"chunk {chunk} of {num_chunks} failed: {type(error).__name__}: {error}"
        super().__init__(f"{problem.rstrip('.')}. {state}")


class Stepper:
    """Streams the parameters of a step through the workspace.

    on_stepped: called on the step lane with each chunk's pieces, while they are on the device.
    make_lanes: what a step's lanes come from; the device's own, unless it is replaced.
    half_stepped: the message of a step that broke off on the way, else empty.
    remedy: what helps then.
    """

    def __init__(self, residency: Residency, rule: Rule, limits: Limits) -> None:
        self.residency, self.rule, self.limits = residency, rule, limits
        self.on_stepped: OnStepped | None = None
        self.half_stepped, self.remedy = "", RESTORE
        self.last = StepReport()
        self.make_lanes: Callable[[], Lanes] | None = None
        self.lanes: Lanes | None = None
        self.workspace: Workspace | None = None
        self._pipeline: Pipeline | None = None
        self._is_told = False
        self._least_bytes = 0
        self._workspace_key: Any = None
        self._plan_key: Any = None
        self._plan: tuple[PreparedChunk, ...] = ()

    def synchronize(self) -> None:
        """Return when host memory holds what the last step wrote."""
        if self.lanes is not None:
            self.lanes.drain.synchronize()

    def drop_workspace(self) -> None:
        """Free what is on the device; the next step allocates again."""
        if self.lanes is not None:
            self.lanes.synchronize()
        self.workspace = self._pipeline = self._workspace_key = self._plan_key = None
        self._plan = ()

    def fit(self, groups: Sequence[Mapping[str, Any]], kinds: Mapping[str, torch.dtype]) -> Costs:
        """What an element costs under these groups. ValueError where the limits are too tight."""
        for group in groups:
            self.rule.check(group)
        passing = max((self.rule.passing_bytes(group) for group in groups), default=0)
        costs = Costs.of([dtype.itemsize for dtype in kinds.values()], passing)
        fit_slots(self.limits.workspace_bytes, self.limits.chunk_bytes, costs)
        return costs

    @contextmanager
    def lent(
        self,
        least_bytes: int,
        groups: Sequence[Mapping[str, Any]],
        kinds: Mapping[str, torch.dtype],
    ) -> Iterator[torch.Tensor]:
        """The workspace's memory, flat uint8, for work on the current stream between two steps.

        Raises ValueError where so much cannot be had beside what a step allocates.
        """
        self._least_bytes = max(self._least_bytes, least_bytes)
        lanes = self._make_ready(groups, kinds)
        self.synchronize()
        try:
            yield self.workspace.memory
        finally:
            # Loads of the next step would run ahead of it, and so would whoever waits for drains.
            over = lanes.new_event()
            lanes.step.record(over)
            lanes.load.wait(over)
            lanes.drain.wait(over)

    def run(
        self,
        work: Mapping[int, Stepped],
        groups: Sequence[Mapping[str, Any]],
        kinds: Mapping[str, torch.dtype],
    ) -> None:
        """Step the parameters in `work` (number to what steps it).

        Raises StepFailed where a rule, the callback or a copy raises; every lane is quiet then.
        """
        lanes = self._make_ready(groups, kinds)
        plan = self._planned(tuple(work))
        self._is_told = False
        try:
            self._pipeline.run(
                lanes,
                len(plan),
                load=lambda number: plan[number].load(),
                step=lambda number: self._step_chunk(plan[number], work),
                drain=lambda number: plan[number].drain(),
            )
        except BaseException as error:
            self._break_off(len(plan), error)
            raise
        moved = sum(chunk.num_bytes for chunk in plan)
        num_pieces = sum(len(chunk.pieces) for chunk in plan)
        self.last = StepReport(len(plan), num_pieces, moved, moved, self.workspace.num_bytes())

    def _make_ready(
        self, groups: Sequence[Mapping[str, Any]], kinds: Mapping[str, torch.dtype]
    ) -> Lanes:
        if self.make_lanes is None:
            self.make_lanes = LaneMaker(self.residency.device).lanes
        self.lanes = self.make_lanes()
        costs = self.fit(groups, kinds)
        for kind, dtype in kinds.items():
            self.residency.host.add_kind(kind, dtype)
        key = (tuple(kinds.items()), costs, len(self.residency.params), self._least_bytes)
        if key != self._workspace_key:
            self.drop_workspace()
            self._allocate(costs, kinds)
            self._workspace_key = key
        return self.lanes

    def _allocate(self, costs: Costs, kinds: Mapping[str, torch.dtype]) -> None:
        num_slots, length = fit_slots(self.limits.workspace_bytes, self.limits.chunk_bytes, costs)
        everything = sum(aligned(extent.length) for extent in self.residency.extents)
        if self.limits.chunk_bytes is None:
            length = min(length, max(aligned(everything // NUM_CHUNKS), SHORTEST))
        length = max(min(length, everything), aligned(1))
        num_slots = max(min(num_slots, -(-everything // length)), 1)
        self._check_least(costs.besides_slots(length))
        self.workspace = Workspace(
            self.residency.device, kinds, num_slots, length, self._least_bytes
        )
        self._pipeline = Pipeline(num_slots, self.lanes.new_event)
        # The allocator may hand out memory that work on the current stream is still using.
        allocated = self.lanes.new_event()
        self.lanes.step.record(allocated)
        self.lanes.load.wait(allocated)

    def _check_least(self, besides_bytes: int) -> None:
        # What is refused asks for nothing when the next step makes its workspace.
        least_bytes, self._least_bytes = self._least_bytes, 0
        if least_bytes + besides_bytes > self.limits.workspace_bytes:
            raise ValueError(
                f"workspace_bytes={self.limits.workspace_bytes} is too small for what is moved at "
                f"a time between two steps: set it to at least {least_bytes + besides_bytes}."
            )
        self._least_bytes = least_bytes

    def _planned(self, numbers: tuple[int, ...]) -> tuple[PreparedChunk, ...]:
        if numbers != self._plan_key:
            extents = {number: self.residency.extents[number] for number in numbers}
            chunks = plan_chunks(extents, self.workspace.length)
            self._plan = prepare(chunks, self.residency.host, self.workspace)
            self._plan_key = numbers
        return self._plan

    def _step_chunk(self, chunk: PreparedChunk, work: Mapping[int, Stepped]) -> None:
        chunk.widen()
        first = 0
        for _, members in groupby(chunk.pieces, key=lambda p: id(work[p.parameter].group)):
            pieces = list(members)
            self._step_pieces(pieces, first, work)
            first += len(pieces)
        chunk.round_back()
        if self.on_stepped is not None:
            # What it writes before it raises is ahead of masters that never come back.
            self._is_told = True
            self.on_stepped(chunk.stepped(self.residency.params))

    def _step_pieces(
        self, pieces: Sequence[PreparedPiece], first: int, work: Mapping[int, Stepped]
    ) -> None:
        """Step neighbours of one group, number `first` and following of their chunk."""
        group = work[pieces[0].parameter].group
        counters = self.workspace.counters(*self.rule.counter(group, self.residency.device))
        counters = counters[first : first + len(pieces)]
        num_steps = [work[piece.parameter].num_steps for piece in pieces]
        if len(set(num_steps)) == 1:
            counters.fill_(num_steps[0])
        else:
            counters.copy_(torch.tensor(num_steps, dtype=counters.dtype))
        self.rule.step(
            group,
            [
                _step_piece(piece, work[piece.parameter], counter)
                for piece, counter in zip(pieces, counters.unbind(), strict=True)
            ],
        )

    def _break_off(self, num_chunks: int, error: BaseException) -> None:
        """Say what state a failure leaves, and let every lane come to rest."""
        half_stepped = self._is_told or self._pipeline.num_written > 0
        failed = StepFailed(self._pipeline.chunk, num_chunks, half_stepped, error, self.remedy)
        self.half_stepped = str(failed) if failed.half_stepped else ""
        self.lanes.synchronize()
        if isinstance(error, Exception):
            raise failed from error


def _step_piece(piece: PreparedPiece, work: Stepped, counter: torch.Tensor) -> StepPiece:
    """counter: of this piece alone, because a rule raises it in place."""
    return StepPiece(
        piece.kinds[MASTER],
        work.gradient[piece.start : piece.stop],
        piece.kinds["exp_avg"],
        piece.kinds["exp_avg_sq"],
        piece.kinds["max_exp_avg_sq"] if work.group.get("amsgrad") else None,
        counter,
    )
