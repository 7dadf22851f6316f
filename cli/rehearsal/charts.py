"""The parts all pictures are drawn from: a fluid SVG, bars, labels, legends, the figure.

Lengths along x are per cent and those along y pixels, so a picture fills any width and its text
keeps its size. Colours are classes; style.py gives them for light, dark and paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from miles_periodic.cli.markup import Child, Markup, element
from miles_periodic.cli.rehearsal.findings import Finding

RUNS = ("off", "on")
RUN_NAMES = {"off": "features off", "on": "features on"}
#: Steps that a picture draws; the table below it has all of them.
MAX_STEPS_DRAWN = 6

Step = TypeVar("Step")


@dataclass(frozen=True, slots=True)
class Scale:
    """Values to per cent of the picture's width."""

    maximum: float

    def __call__(self, value: float) -> float:
        return 100 * value / self.maximum if self.maximum > 0 else 0.0


def picture(
    name: str,
    title: str,
    description: str,
    height: float,
    shapes: Sequence[Markup],
    left: int = 0,
    right: int = 0,
) -> Markup:
    """An SVG of full width; `left` and `right` are pixels kept free beside it for labels."""
    title_id, description_id = f"{name}-title", f"{name}-description"
    return element(
        "svg",
        element("title", title, id=title_id),
        element("desc", description, id=description_id),
        list(shapes),
        role="img",
        aria_labelledby=f"{title_id} {description_id}",
        height=f"{height:.0f}",
        style=f"--left:{left}px;--right:{right}px",
    )


def bar(
    x: float, y: float, width: float, height: float, class_: str, tip: str | None = None
) -> Markup:
    """A box: x and width in per cent, y and height in pixels, `tip` shown on hover."""
    return element(
        "rect",
        element("title", tip) if tip else None,
        x=f"{x:.3f}%",
        y=f"{y:.1f}",
        width=f"{max(width, 0):.3f}%",
        height=f"{height:.1f}",
        class_=class_,
    )


def label(
    text: str, y: float, class_: str = "", x: float = 0, dx: float = 0, anchor: str | None = None
) -> Markup:
    """Text whose baseline is at y; x in per cent, `dx` pixels further."""
    return element(
        "text",
        text,
        x=f"{x:.3f}%",
        dx=f"{dx:g}" if dx else None,
        y=f"{y:.1f}",
        class_=class_ or None,
        text_anchor=anchor,
    )


def upright(x: float, top: float, bottom: float, class_: str) -> Markup:
    """A vertical line at x per cent."""
    x_text = f"{x:.3f}%"
    return element("line", x1=x_text, x2=x_text, y1=f"{top:.1f}", y2=f"{bottom:.1f}", class_=class_)


def legend(*entries: tuple[str, str]) -> Markup:
    """What the classes of a picture mean: (class, words) each."""
    items = [
        element("li", element("svg", bar(0, 0, 100, 12, class_), aria_hidden="true"), words)
        for class_, words in entries
    ]
    return element("ul", items, class_="legend")


def figure(finding: Finding, lead: str, *body: Child, wide: bool = False) -> Markup:
    """A picture with its takeaway as the heading."""
    return element(
        "figure",
        element(
            "figcaption",
            element("h3", finding.sentence),
            element("p", lead),
            element("p", finding.caution, class_="caution") if finding.caution else None,
        ),
        *body,
        class_="card wide" if wide else "card",
        data_outcome=finding.outcome,
    )


def numbers_below(content: Child) -> Markup:
    """The numbers of a picture, folded away."""
    return element("details", element("summary", "Numbers"), content)


def nothing_drawn(finding: Finding) -> Markup:
    """In place of a picture whose data are missing."""
    return figure(finding, "There is nothing to draw: this rehearsal did not get that far.")


def drawn(steps: Sequence[Step]) -> Sequence[Step]:
    """The steps that a picture draws."""
    return steps[:MAX_STEPS_DRAWN]


def left_out(num_steps: int) -> str:
    """A sentence for the steps that are not drawn; empty where all are."""
    if num_steps <= MAX_STEPS_DRAWN:
        return ""
    return f" The first {MAX_STEPS_DRAWN} of {num_steps} steps are drawn."


def hatching() -> Markup:
    """The hatch that stands for waiting, once per document."""
    stripe = element("line", x1="0", y1="0", x2="0", y2="6", class_="stripe")
    pattern = element(
        "pattern",
        stripe,
        id="hatch",
        width="6",
        height="6",
        patternUnits="userSpaceOnUse",
        patternTransform="rotate(45)",
    )
    return element(
        "svg", element("defs", pattern), width="0", height="0", aria_hidden="true", class_="defs"
    )
