"""A small server in a folder: a request is tokenized, scheduled, and its rows gathered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from miles_periodic.compat.tree import Tree

SOURCES = {
    "srt/managers/io_struct.py": """
        from dataclasses import dataclass

        @dataclass
        class GenerateReqInput:
            text: str = ""
            start_row: int = 0

        @dataclass
        class TokenizedGenerateReqInput:
            text: str = ""
            start_row: int = 0
        """,
    "srt/managers/tokenizer_manager.py": """
        class TokenizerManager:
            def tokenize(self, obj):
                return TokenizedGenerateReqInput(text=obj.text, start_row=obj.start_row)
        """,
    "srt/managers/schedule_batch.py": """
        class Req:
            def __init__(self, text, start_row=0):
                self.text = text
                self.start_row = start_row
        """,
    "srt/managers/scheduler.py": """
        class Scheduler:
            def handle(self, recv_req: TokenizedGenerateReqInput):
                req = Req(recv_req.text, start_row=recv_req.start_row)
                if recv_req.start_row < 0:
                    message = f"{recv_req.start_row} is negative"
                    return self.refuse(req, message)
                self.queue.append(req)
        """,
    "srt/managers/collector.py": """
        class Collector:
            def collect(self, req):
                return self.rows[req.start_row :]
        """,
}


@pytest.fixture
def made_tree(tmp_path) -> Callable[..., Tree]:
    """`made_tree(changes)` writes the server, changed, and gives its tree."""
    return lambda changes=None: write_tree(tmp_path, changes)


def write_tree(folder: Path, changes: dict[str, tuple[str, str] | str] | None = None) -> Tree:
    """The server with some files changed: (old, new) replaces text, a string replaces the file."""
    sources = {path: _dedented(text) for path, text in SOURCES.items()}
    for path, change in (changes or {}).items():
        if isinstance(change, str):
            sources[path] = _dedented(change)
        else:
            old, new = change
            assert old in sources[path], f"{path} has no {old!r}"
            sources[path] = sources[path].replace(old, new)
    for path, text in sources.items():
        file = folder / "sglang" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Tree.at("sglang", folder)


def _dedented(text: str) -> str:
    lines = text.strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    return "\n".join(line[indent:] for line in lines) + "\n"
