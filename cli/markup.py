"""HTML and SVG as values: whatever is not already markup is escaped when it goes in."""

from __future__ import annotations

import html
from collections.abc import Collection
from typing import TypeAlias

VOID = frozenset({"br", "col", "hr", "link", "meta"})


class Markup(str):
    """Text that is markup; only the functions of this module make it."""

    __slots__ = ()


Child: TypeAlias = "str | int | float | None | list[Child] | tuple[Child, ...]"


def element(name: str, /, *children: Child, **attributes: str | int | float | None) -> Markup:
    """One element; children and attributes that are None are left out, the others escaped.

    Children that are Markup go in as they stand. Attribute names have `_` for `-`; `class_` is
    the attribute `class`.
    """
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return Markup(f"<{name}{shown}>")
    return Markup(f"<{name}{shown}>{join(children)}</{name}>")


def join(children: Child) -> Markup:
    """Children one after the other, escaped where they are no Markup."""
    if isinstance(children, Markup):
        return children
    if children is None:
        return Markup("")
    if isinstance(children, list | tuple):
        return Markup("".join(join(child) for child in children))
    return Markup(escaped(children))


def escaped(value: str | int | float) -> str:
    """Text for an element or a quoted attribute."""
    return html.escape(str(value), quote=True)


def own_text(text: str) -> Markup:
    """Text of this project's own (style, drawing) that goes in as it stands."""
    return Markup(text)


def table(
    caption: str,
    head: list[Child],
    rows: list[list[Child]],
    numbers: Collection[int] = (),
    class_: str | None = None,
) -> Markup:
    """A semantic table in a box of its own that scrolls; columns in `numbers` align right.

    The first cell of each row is its heading; every cell carries its column's name, so that
    narrow screens can show rows as cards.
    """
    names = [name if isinstance(name, str) else "" for name in head]
    heads = [_head(index, cell, numbers) for index, cell in enumerate(head)]
    return element(
        "div",
        element(
            "table",
            element("caption", caption),
            element("thead", element("tr", heads, role="row"), role="rowgroup"),
            element("tbody", [_row(row, names, numbers) for row in rows], role="rowgroup"),
            role="table",
        ),
        class_=" ".join(filter(None, ("table", class_))),
        tabindex="0",
        role="region",
        aria_label=caption,
    )


def _head(index: int, cell: Child, numbers: Collection[int]) -> Markup:
    class_ = "number" if index in numbers else None
    return element("th", cell, scope="col", role="columnheader", class_=class_)


def _row(row: list[Child], names: list[str], numbers: Collection[int]) -> Markup:
    """A row; its roles are spelled out, because cards take the table's own away."""
    first, *rest = row
    cells = [
        element(
            "td",
            cell,
            role="cell",
            class_="number" if index in numbers else None,
            data_label=names[index],
        )
        for index, cell in enumerate(rest, start=1)
    ]
    return element("tr", element("th", first, scope="row", role="rowheader"), cells, role="row")
