"""What was heard of rows since the ledger was written: in the cache, or written into it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from miles_periodic.hooks.cache_folder import cache_folder
from miles_periodic.upstream.github import Said
from miles_periodic.upstream.rows import Row

_TABLE = re.compile(r'^\["(?P<key>[^"]+)"\]\n', re.MULTILINE)


def heard() -> dict[str, Said]:
    """Key of a row to what GitHub said last; empty where nobody asked, or the file is damaged."""
    try:
        values = json.loads(_file().read_text(encoding="utf-8"))
        return {key: Said(**part) for key, part in values.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError):  # of another version, or cut short: it is asked for anew
        return {}


def keep(said: Mapping[str, Said]) -> None:
    """Replace what was heard, in one rename."""
    file = _file()
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    values = {key: asdict(each) for key, each in sorted(said.items())}
    beside.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    beside.replace(file)


def as_heard(row: Row, said: Mapping[str, Said]) -> Row:
    """The row with the state that was heard, where that is newer than the ledger's."""
    newer = said.get(row.key)
    if newer is None or newer.seen < row.last_update:
        return row
    return replace(
        row,
        title=newer.title,
        state=newer.state,
        merged=newer.merged or row.merged,
        last_update=newer.seen,
    )


def rewritten(text: str, said: Mapping[str, Said]) -> str:
    """A ledger file's text with the states, dates and titles that were heard; all else is kept."""
    parts = _TABLE.split(text)
    written = [parts[0]]
    for key, body in zip(parts[1::2], parts[2::2], strict=True):
        written += [f'["{key}"]\n', _with(body, said[key]) if key in said else body]
    return "".join(written)


def _with(body: str, said: Said) -> str:
    """A table's lines with what was heard; what is merged and in no release yet stands in main."""
    values = {
        "title": said.title,
        "state": said.state,
        "opened": said.opened,
        "merged": said.merged,
        "last-update": said.seen,
    }
    if said.state == "merged" and not re.search(r"^applied-upstream = ", body, re.MULTILINE):
        values["applied-upstream"] = "main"
    for name, value in values.items():
        if value:
            body = _with_line(body, name, f"{name} = {json.dumps(value, ensure_ascii=False)}")
    return body


def _with_line(body: str, name: str, line: str) -> str:
    """The line in its place, or before `last-update`, which every table has."""
    there = re.search(rf"^{name} = .*$", body, re.MULTILINE)
    if there:
        return body[: there.start()] + line + body[there.end() :]
    before = body.index("last-update = ")
    return f"{body[:before]}{line}\n{body[before:]}"


def _file() -> Path:
    return cache_folder() / "pull-requests.json"
