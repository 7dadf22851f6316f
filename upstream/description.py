"""The text of a pull request: our parts, put below the headings of the upstream's own template.

What a template says besides stays as it is: its boxes are for the person who sends it to tick.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from miles_periodic.upstream.contributions import Contribution

#: Where an upstream may keep its template, most usual first.
TEMPLATES = (
    ".github/pull_request_template.md",
    ".github/PULL_REQUEST_TEMPLATE.md",
    "docs/pull_request_template.md",
    "pull_request_template.md",
)
#: A part of ours to words that a template's heading for it may have; the first that fits is taken.
_HEADINGS: Mapping[str, str] = {
    "Motivation": r"motivation|what does this pr do|summary|description|why",
    "Design": r"modification|design|changes|how",
    "Measurements": r"benchmark|profiling|performance|speed|measurement",
    "How it was tested": r"test|accuracy|validation",
    "Compatibility": r"compatib|breaking|risk",
}
_HEADING = re.compile(r"^(#{1,6}) (.+)$", re.MULTILINE)


def parts_of(contribution: Contribution, measurements: str, tested: str) -> dict[str, str]:
    """Our parts by name, in order."""
    return {
        "Motivation": contribution.motivation.strip(),
        "Design": contribution.design.strip(),
        "Measurements": measurements.strip(),
        "Compatibility": contribution.compatibility.strip(),
        "How it was tested": tested.strip(),
    }


def description(title: str, parts: Mapping[str, str], template: str | None) -> str:
    """The whole text, its first line the title; without a template our parts are its headings."""
    left = dict(parts)
    before, after = _filled(template, left) if template else ("", "")
    own = [f"## {name}\n\n{text}" for name, text in left.items()]
    return "\n\n".join(filter(None, [title, before, *own, after])) + "\n"


def _filled(template: str, left: dict[str, str]) -> tuple[str, str]:
    """The template with parts below the headings that are for them, cut behind the last of these.

    They leave `left`; where a template has no heading for any, the cut is at its end.
    """
    out: list[str] = []
    end = 0
    for heading in _HEADING.finditer(template):
        name = next((n for n in left if re.search(_HEADINGS[n], heading[2], re.IGNORECASE)), None)
        if name is not None:
            out += [template[end : heading.end()], f"\n\n{left.pop(name)}\n"]
            end = heading.end()
    rest = template[end:].strip()
    return ("".join(out).strip(), rest) if out else (rest, "")


def commit_message(subject: str, body: str) -> str:
    """A commit's message; git signs it off."""
    return f"{subject}\n\n{body}" if body else subject
