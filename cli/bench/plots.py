"""Measured times as pictures: one SVG file each, for light and dark pages, that needs nothing else.

A row per thing that was done, on one logarithmic axis of milliseconds: a dot per measurement, a bar
from p50 to p90, a line at p99, and where there is a goal for p50, its mark.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from miles_periodic.cli.markup import Markup, element, own_text

WIDTH, LEFT, RIGHT = 720.0, 244.0, 134.0
TOP, ROW, GROUP, AXIS, LEGEND = 54.0, 22.0, 30.0, 26.0, 30.0
_STYLE = """
svg{--card:#fff;--ink:#1b1f24;--quiet:#59626d;--line:#e2e4e7;--bar:#0067a8;--goal:#00694c}
@media (prefers-color-scheme:dark){svg{--card:#171b20;--ink:#e7eaee;--quiet:#a3acb7;--line:#2a3037;
--bar:#5fb0ee;--goal:#4fc9a1}}
text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
fill:var(--ink)} .title{font-size:15px;font-weight:620} .group{font-weight:600}
.quiet{fill:var(--quiet)} .card{fill:var(--card)} .grid{stroke:var(--line)}
.dot{fill:var(--bar);opacity:.22} .bar{fill:var(--bar);opacity:.55} .median{fill:var(--bar)}
.most{stroke:var(--bar);stroke-width:2} .goal{fill:var(--goal)}
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A thing that was done some times, each in so many milliseconds; goal: of its median."""

    name: str
    milliseconds: Sequence[float]
    goal: float | None = None


@dataclass(frozen=True, slots=True)
class _Axis:
    """Powers of ten from the one below all values to the one above; x in pixels."""

    first: int
    last: int

    def __call__(self, value: float) -> float:
        share = (math.log10(value) - self.first) / (self.last - self.first)
        return LEFT + share * (WIDTH - LEFT - RIGHT)


def quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    """p50, the median, and p90 and p99, each the smallest value that so many do not exceed."""
    ordered = sorted(values)
    p90, p99 = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.9, 0.99))
    return statistics.median(ordered), p90, p99


def draw(title: str, groups: Sequence[tuple[str, Sequence[Row]]]) -> str:
    """The picture of groups of rows, each under its name. Every value is above 0."""
    rows = [row for _, of_group in groups for row in of_group]
    everything = [value for row in rows for value in (*row.milliseconds, row.goal or 1.0)]
    first, last = (math.log10(end(everything)) for end in (min, max))
    axis = _Axis(math.floor(first), max(math.ceil(last), math.floor(first) + 1))
    height = TOP + GROUP * len(groups) + ROW * len(rows) + AXIS + LEGEND
    shapes, y = _grid(axis, height), TOP
    for name, of_group in groups:
        shapes.append(_text(name, 16, y + 20, "group"))
        y += GROUP
        for row in of_group:
            shapes += _row(row, y + ROW / 2, axis)
            y += ROW
    return str(element(
        "svg",
        element("title", title),
        element("desc", "; ".join(f"{row.name}: {_said(row)}" for row in rows)),
        element("style", own_text(_STYLE)),
        element("rect", width=f"{WIDTH:.0f}", height=f"{height:.0f}", rx=12, class_="card"),
        _text(title, 16, 28, "title"),
        _text("p50 / p90 / p99, ms", WIDTH - 12, 28, "quiet", "end"),
        shapes,
        _legend(height - 14, any(row.goal for row in rows)),
        xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH:.0f} {height:.0f}",
        width=f"{WIDTH:.0f}", height=f"{height:.0f}", role="img",
    )) + "\n"  # fmt: skip


def _grid(axis: _Axis, height: float) -> list[Markup]:
    bottom = height - AXIS - LEGEND
    shapes = []
    for power in range(axis.first, axis.last + 1):
        x = axis(10.0**power)
        shapes.append(_line(x, TOP - 8, bottom, "grid"))
        shapes.append(_text(f"{10.0**power:,g} ms", x, bottom + 18, "quiet", "middle"))
    return shapes


def _row(row: Row, y: float, axis: _Axis) -> list[Markup]:
    p50, p90, p99 = quantiles(row.milliseconds)
    dots = [
        element("circle", cx=f"{axis(value):.1f}", cy=f"{y:.1f}", r=3, class_="dot")
        for value in row.milliseconds
    ]
    goal = [] if row.goal is None else [_diamond(axis(row.goal), y)]
    return [
        _text(row.name, 28, y + 4),
        *dots,
        _bar(axis(p50), axis(p90), y),
        _line(axis(p99), y - 7, y + 7, "most"),
        element("circle", cx=f"{axis(p50):.1f}", cy=f"{y:.1f}", r=4, class_="median"),
        *goal,
        _text(_said(row), WIDTH - 12, y + 4, "quiet", "end"),
    ]


def _said(row: Row) -> str:
    return " / ".join(map(_short, quantiles(row.milliseconds)))


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 99.5 else f"{value:.1f}"


def _legend(y: float, has_goals: bool) -> list[Markup]:
    entries = [
        (element("circle", cx=0, cy=0, r=3, class_="dot"), "one measurement", 120),
        (element("circle", cx=0, cy=0, r=4, class_="median"), "p50", 46),
        (element("rect", x=-6, y=-3, width=14, height=6, class_="bar"), "to p90", 66),
        (element("line", x1=0, x2=0, y1=-6, y2=6, class_="most"), "p99", 46),
    ]
    if has_goals:
        entries.append((_diamond(0, 0), "goal of p50", 0))
    shapes, x = [], 22.0
    for sign, words, width in entries:
        at = f"translate({x:.0f} {y - 4:.0f})"
        shapes += [element("g", sign, transform=at), _text(words, x + 12, y, "quiet")]
        x += width + 24
    return shapes


def _text(words: str, x: float, y: float, class_: str = "", anchor: str | None = None) -> Markup:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "class_": class_ or None}
    return element("text", words, **place, text_anchor=anchor)


def _line(x: float, top: float, bottom: float, class_: str) -> Markup:
    place = {"y1": f"{top:.1f}", "y2": f"{bottom:.1f}", "class_": class_}
    return element("line", x1=f"{x:.1f}", x2=f"{x:.1f}", **place)


def _bar(x: float, end: float, y: float) -> Markup:
    width = f"{max(end - x, 0.5):.1f}"
    return element("rect", x=f"{x:.1f}", y=f"{y - 3:.1f}", width=width, height=6, class_="bar")


def _diamond(x: float, y: float) -> Markup:
    return element("path", d=f"M{x:.1f} {y - 7:.1f}l4 7l-4 7l-4 -7z", class_="goal")
