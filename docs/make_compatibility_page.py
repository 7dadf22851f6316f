"""Writes compatibility.md from the facts on file: `python docs/make_compatibility_page.py`."""

from __future__ import annotations

from pathlib import Path

from miles_periodic.cli.compat import page as matrix_page
from miles_periodic.compat.matrix.facts import recorded
from miles_periodic.compat.matrix.releases import known_releases


def page() -> str:
    """The page's text."""
    found = [recorded(release.label) for release in known_releases()]
    return matrix_page.page([facts for facts in found if facts is not None])


if __name__ == "__main__":
    Path(__file__).with_name("compatibility.md").write_text(page(), encoding="utf-8")
