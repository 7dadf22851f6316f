"""Two pictures of traffic: bytes of routed experts per turn, prefix tokens per step."""

from __future__ import annotations

from miles_periodic.cli.markup import Markup, table
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
)
from miles_periodic.cli.rehearsal.findings import prefix_finding, routes_finding
from miles_periodic.cli.rehearsal.quantities import (
    NOT_MEASURED,
    bytes_text,
    count_text,
    share_text,
)
from miles_periodic.cli.rehearsal.result import Prefix, PrefixStep, Result, Routes

BAR = 14
GROUP_TITLE = 20
GROUP = GROUP_TITLE + 2 * (BAR + 4) + 12


def routes_picture(result: Result) -> Markup:
    """Bytes of routed experts received, a pair of bars per turn."""
    finding = routes_finding(result)
    by_run = {run: _turns(part.routes) for run, part in _runs(result) if part.routes}
    if not by_run:
        return nothing_drawn(finding)
    turns = sorted({turn for values in by_run.values() for turn in values})
    return figure(
        finding,
        "Bytes of routed experts that the rollout received from the servers, per turn.",
        legend(*((f"run-{run}", RUN_NAMES[run]) for run in RUNS)),
        _routes_bars(finding.sentence, turns, by_run),
        numbers_below(_routes_table(turns, by_run)),
    )


def _runs(result: Result):
    return [(run, part) for run in RUNS if (part := getattr(result.runs, run))]


def _turns(routes: Routes) -> dict[int, int]:
    """Bytes by turn; turn 0 stands for all where the turns were not kept apart."""
    return {turn.turn: turn.bytes for turn in routes.per_turn} or {0: routes.bytes_received}


def _turn_name(turn: int) -> str:
    return f"turn {turn}" if turn else "all turns"


def _routes_bars(title: str, turns: list[int], by_run: dict[str, dict[int, int]]) -> Markup:
    scale = Scale(max(max(values.values()) for values in by_run.values()))
    shapes: list[Markup] = []
    for index, turn in enumerate(turns):
        top = index * GROUP
        shapes.append(label(_turn_name(turn), top + 13, "group", dx=-34))
        for row, run in enumerate(RUNS):
            y = top + GROUP_TITLE + row * (BAR + 4)
            num_bytes = by_run.get(run, {}).get(turn)
            width = scale(num_bytes or 0)
            tip = f"{_turn_name(turn)}, {RUN_NAMES[run]}: {bytes_text(num_bytes)}"
            shapes += [
                label(run, y + 11, "quiet", dx=-34),
                bar(0, y, width, BAR, f"run-{run}", tip),
                label(bytes_text(num_bytes), y + 11, "value", x=width, dx=6)
                if num_bytes is not None
                else label(NOT_MEASURED, y + 11, "quiet"),
            ]
    description = "; ".join(
        f"{_turn_name(turn)}: "
        + ", ".join(f"{run} {bytes_text(by_run.get(run, {}).get(turn))}" for run in RUNS)
        for turn in turns
    )
    return picture("routes", title, description, len(turns) * GROUP, shapes, left=34, right=88)


def _routes_table(turns: list[int], by_run: dict[str, dict[int, int]]) -> Markup:
    rows = [
        [_turn_name(turn), *(bytes_text(by_run.get(run, {}).get(turn)) for run in RUNS)]
        for turn in turns
    ]
    return table(
        "Bytes of routed experts per turn", ["turn", *RUN_NAMES.values()], rows, numbers={1, 2}
    )


#: Fields of a step to class and words, in the order of drawing; they are disjoint.
PARTS = {
    "reused": ("reused", "reused"),
    "reprefilled": ("reprefilled", "re-prefilled"),
    "stale": ("stale", "stale, reused from older weights"),
}


def prefix_picture(result: Result) -> Markup:
    """Prompt tokens by what became of their prefix, a pair of stacked bars per step."""
    finding = prefix_finding(result)
    by_run = {run: _steps(part.prefix) for run, part in _runs(result) if part.prefix}
    steps = sorted({step for values in by_run.values() for step in values})
    if not steps:
        return nothing_drawn(finding)
    return figure(
        finding,
        "Prompt tokens of each step, by where their keys and values came from."
        + left_out(len(steps)),
        legend(*PARTS.values(), ("track", "new, computed once")),
        _prefix_bars(finding.sentence, list(drawn(steps)), by_run),
        numbers_below(_prefix_table(steps, by_run)),
    )


def _steps(prefix: Prefix) -> dict[int, PrefixStep]:
    return {step.step: step for step in prefix.per_step}


def _prefix_bars(title: str, steps: list[int], by_run: dict[str, dict[int, PrefixStep]]) -> Markup:
    scale = Scale(max(_extent(step) for values in by_run.values() for step in values.values()))
    shapes: list[Markup] = []
    for index, step in enumerate(steps):
        top = index * GROUP
        shapes.append(label(f"step {step}", top + 13, "group", dx=-34))
        for row, run in enumerate(RUNS):
            y = top + GROUP_TITLE + row * (BAR + 4)
            shapes.append(label(run, y + 11, "quiet", dx=-34))
            shapes += _stack(by_run.get(run, {}).get(step), y, scale)
    description = "; ".join(
        f"step {step}: "
        + ", ".join(f"{run} {_words(by_run.get(run, {}).get(step))}" for run in RUNS)
        for step in steps
    )
    return picture("prefix", title, description, len(steps) * GROUP, shapes, left=34, right=88)


def _extent(step: PrefixStep) -> int:
    return max(step.prompt_tokens, sum(getattr(step, part) for part in PARTS))


def _stack(step: PrefixStep | None, y: float, scale: Scale) -> list[Markup]:
    if step is None:
        return [label(NOT_MEASURED, y + 11, "quiet")]
    shapes = [bar(0, y, scale(step.prompt_tokens), BAR, "track", f"{step.prompt_tokens:,} tokens")]
    x = 0.0
    for part, (class_, words) in PARTS.items():
        if count := getattr(step, part):
            shapes.append(bar(x, y, scale(count), BAR, class_, f"{words}: {count:,} tokens"))
            x += scale(count)
    end = scale(_extent(step))
    share = share_text(step.reused, step.prompt_tokens)
    return [*shapes, label(f"{share} reused" if share else "", y + 11, "value", x=end, dx=6)]


def _words(step: PrefixStep | None) -> str:
    if step is None:
        return NOT_MEASURED
    return " and ".join(f"{getattr(step, part):,} {words}" for part, (_, words) in PARTS.items())


def _prefix_table(steps: list[int], by_run: dict[str, dict[int, PrefixStep]]) -> Markup:
    rows = [
        [
            f"step {step}, {run}",
            *(count_text(getattr(found, f)) for f in ("prompt_tokens", *PARTS)),
        ]
        for step in steps
        for run in RUNS
        if (found := by_run.get(run, {}).get(step))
    ]
    head = ["step", "prompt", "reused", "re-prefilled", "stale"]
    return table("Prefix tokens per step", head, rows, numbers={1, 2, 3, 4})
