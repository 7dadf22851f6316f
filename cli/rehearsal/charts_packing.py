"""The picture of the slots: what each rank does in each step, and who waits for whom."""

from __future__ import annotations

from miles_periodic.cli.markup import Child, Markup, element, table
from miles_periodic.cli.rehearsal.charts import (
    RUN_NAMES,
    RUNS,
    Scale,
    bar,
    drawn,
    figure,
    label,
    left_out,
    legend,
    nothing_drawn,
    numbers_below,
    picture,
    upright,
)
from miles_periodic.cli.rehearsal.findings import packing_finding
from miles_periodic.cli.rehearsal.quantities import cost_text, count_text, ratio_text
from miles_periodic.cli.rehearsal.result import Packing, PackingStep, Result, Slot

ROW = 24
ROW_GAP = 4
TITLE = 24
PANEL_GAP = 16
#: Per cent of the width from which a box has room for its number of tokens, and on phones.
ROOM_FOR_TEXT = 9.0
ROOM_ON_PHONES = 18.0


def packing_picture(result: Result) -> Markup:
    """Per step and run: a row per rank, boxes as wide as their cost, gaps where a rank waits."""
    finding = packing_finding(result)
    by_run = {
        run: part.packing
        for run in RUNS
        if (part := getattr(result.runs, run)) and part.packing and part.packing.per_step
    }
    if not by_run:
        return nothing_drawn(finding)
    steps = sorted({step.step for packing in by_run.values() for step in packing.per_step})
    return figure(
        finding,
        "One row per rank, one box per micro-batch with its tokens, as wide as its cost. "
        "Ranks start a slot together, so each waits for the slowest." + left_out(len(steps)),
        legend(
            *((f"run-{run}", RUN_NAMES[run]) for run in RUNS),
            ("waiting", "waiting for another rank"),
            ("bound", "lower bound: nobody ever waits"),
        ),
        [_step_picture(finding.sentence, step, by_run) for step in drawn(steps)],
        numbers_below(_packing_table(by_run)),
        wide=True,
    )


def _step_picture(title: str, number: int, by_run: dict[str, Packing]) -> Child:
    steps = {
        run: step
        for run, packing in by_run.items()
        for step in packing.per_step
        if step.step == number
    }
    scale = Scale(max(max(step.slot_time, step.lower_bound, _end(step)) for step in steps.values()))
    shapes: list[Markup] = []
    top = 0.0
    for run, step in steps.items():
        shapes += _panel(run, step, by_run[run].unit, top, scale)
        top += TITLE + len(step.slots) * (ROW + ROW_GAP) + PANEL_GAP
    description = "; ".join(
        f"{RUN_NAMES[run]}: slot time {cost_text(step.slot_time, by_run[run].unit)}, "
        f"{ratio_text(step.ratio)} the lower bound"
        for run, step in steps.items()
    )
    return [
        element("h4", f"step {number}"),
        picture(f"packing-{number}", title, description, top, shapes, left=52, right=4),
    ]


def _slowest(step: PackingStep) -> list[float]:
    """The cost of each slot's slowest rank."""
    num_slots = max((len(rank) for rank in step.slots), default=0)
    return [
        max(rank[index].cost for rank in step.slots if index < len(rank))
        for index in range(num_slots)
    ]


def _end(step: PackingStep) -> float:
    return sum(_slowest(step))


def _panel(run: str, step: PackingStep, unit: str, top: float, scale: Scale) -> list[Markup]:
    """One run's ranks in one step, under a line with its ratio, with the lower bound across."""
    bottom = top + TITLE + len(step.slots) * (ROW + ROW_GAP)
    words = f"{run}, {ratio_text(step.ratio)}"
    shapes = [label(words, top + 14, "group", dx=-52)]
    for rank, slots in enumerate(step.slots):
        y = top + TITLE + rank * (ROW + ROW_GAP)
        shapes.append(label(f"rank {rank}", y + 16, "quiet", dx=-52))
        shapes += _rank_row(run, rank, slots, _slowest(step), unit, y, scale)
    x = scale(step.lower_bound)
    shapes += [
        upright(x, top + TITLE - 6, bottom, "casing"),
        upright(x, top + TITLE - 6, bottom, "bound"),
        label("lower bound", top + 14, "quiet", x=x, anchor="end"),
    ]
    return shapes


def _rank_row(
    run: str,
    rank: int,
    slots: tuple[Slot, ...],
    slowest: list[float],
    unit: str,
    y: float,
    scale: Scale,
) -> list[Markup]:
    shapes: list[Markup] = []
    x = 0.0
    for index, longest in enumerate(slowest):
        slot = slots[index] if index < len(slots) else Slot(tokens=0, cost=0)
        width, whole = scale(slot.cost), scale(longest)
        tip = f"rank {rank}, slot {index}: {slot.tokens:,} tokens, {cost_text(slot.cost, unit)}"
        shapes.append(bar(x, y, width, ROW, f"run-{run} box", tip))
        if longest > slot.cost:
            wait = f"rank {rank} waits for {cost_text(longest - slot.cost, unit)}"
            shapes.append(bar(x + width, y, whole - width, ROW, "waiting box", wait))
        if width >= ROOM_FOR_TEXT:
            words = count_text(slot.tokens)
            class_ = f"on-{run}" if width >= ROOM_ON_PHONES else f"on-{run} tight"
            shapes.append(label(words, y + 16, class_, x=x, dx=8))
        x += whole
    return shapes


def _packing_table(by_run: dict[str, Packing]) -> Markup:
    rows = [
        [
            f"step {step.step}, {run}",
            cost_text(step.slot_time, packing.unit),
            cost_text(step.lower_bound, packing.unit),
            ratio_text(step.ratio),
            count_text(sum(slot.tokens for rank in step.slots for slot in rank)),
        ]
        for run, packing in by_run.items()
        for step in sorted(packing.per_step, key=lambda step: step.step)
    ]
    head = ["step", "slot time", "lower bound", "ratio", "tokens"]
    return table("Slot time per step", head, rows, numbers={1, 2, 3, 4})
