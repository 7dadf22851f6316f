"""Numbers for a description: sections of docs/benchmarks.md, or a benchmark's result in JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


def page() -> Path:
    """docs/benchmarks.md, where this runs from a checkout."""
    return Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"


def measured(path: Path, headings: Sequence[str]) -> str:
    """What a file says: the sections below those headings, or all of a JSON result, as a table.

    ValueError names a heading that the page has not, or what is wrong with the JSON.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return _table(json.loads(text))
    sections = _sections(text)
    if missing := [each for each in headings if each not in sections]:
        raise ValueError(f"{path} has no section {', '.join(missing)}")
    return "\n\n".join(sections[each] for each in headings)


def _sections(text: str) -> Mapping[str, str]:
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], map(str.strip, parts[2::2]), strict=True))


def _table(result: Any) -> str:
    """A Markdown table of a list of flat rows, or of one."""
    rows = [dict(_flat(each)) for each in (result if isinstance(result, list) else [result])]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, ["---"] * len(columns)]
    lines += [[str(row.get(name, "–")) for name in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _flat(row: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(row, Mapping):
        raise ValueError("the result is no list of rows")
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name} ")
        else:
            yield f"{before}{name}", f"{value:.4g}" if isinstance(value, float) else value
