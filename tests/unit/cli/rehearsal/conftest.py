"""The example results, fresh for every test, and a page read back into its elements."""

from __future__ import annotations

import runpy
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

_EXAMPLES = runpy.run_path(str(Path(__file__).with_name("example_result.py")))
_VOID = frozenset({"meta", "br", "hr", "link", "img", "input", "col"})


@pytest.fixture
def passed() -> dict[str, Any]:
    return _EXAMPLES["passed_result"]()


@pytest.fixture
def failed() -> dict[str, Any]:
    return _EXAMPLES["failed_result"]()


class Page(HTMLParser):
    """The elements, attributes and texts of a page; refuses tags that do not pair up."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        if self._open:
            raise ValueError(f"never closed: {self._open}")

    def handle_starttag(self, tag, attrs) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag) -> None:
        if not self._open or self._open.pop() != tag:
            raise ValueError(f"</{tag}> closes nothing at {self.getpos()}")

    def handle_data(self, data) -> None:
        if data.strip():
            self.texts.append((self._open[-1] if self._open else "", data))

    def of(self, tag: str) -> list[dict[str, str]]:
        """The attributes of every element of a tag."""
        return [attributes for name, attributes in self.elements if name == tag]

    def text(self, *tags: str) -> str:
        """The text directly inside the given tags, or of the whole page but its style."""
        return "\n".join(t for tag, t in self.texts if tag in tags or not tags and tag != "style")


@pytest.fixture
def read_page():
    return Page
