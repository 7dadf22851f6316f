"""A binding point: the statement that a patch set puts at the end of a module, as text.

Without a run's gate it is one environment look-up, as the .pth line is, and imports nothing.
`compat.binding_point` is what it calls in a run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_OPENING = "# >>> miles-periodic: "
_CLOSING = "# <<< miles-periodic: "
#: On the opening line where the file's last line had no end: taking the point out restores that.
_UNFINISHED = " (the last line was not ended)"
_POINT = re.compile(
    rf"^{_OPENING}(?P<slug>[a-z0-9-]+)(?P<unfinished>{re.escape(_UNFINISHED)})?\n"
    rf"(?P<body>(?:(?!{_OPENING}|{_CLOSING}).*\n)*?){_CLOSING}(?P=slug)\n",
    re.MULTILINE,
)


def point(slug: str, names: Sequence[str], *, unfinished: bool = False) -> str:
    """The text that follows a module's last line: the binding point of one feature.

    unfinished: whether that line lacks its end.
    """
    listed = "".join(f'        "{name}",\n' for name in names)
    lead, remark = ("\n\n\n", _UNFINISHED) if unfinished else ("\n\n", "")
    return (
        f"{lead}{_OPENING}{slug}{remark}\n"
        'if __import__("os").environ.get("MILES_PERIODIC"):\n'
        '    __import__("miles_periodic.compat.binding_point", fromlist=["bind"]).bind(\n'
        f"        __name__,\n{listed}    )\n"
        f"{_CLOSING}{slug}\n"
    )


def points_in(text: str) -> dict[str, str]:
    """Feature to the text of its point in a module, of points that are as `point` writes them."""
    found = {}
    text = text.replace("\r\n", "\n")
    for match in _POINT.finditer(text):
        names = names_at(match["body"])
        written = point(match["slug"], names, unfinished=bool(match["unfinished"]))
        if text[: match.end()].endswith(written):
            found[match["slug"]] = written
    return found


def names_at(text: str) -> tuple[str, ...]:
    """The names of bindings at a point, by its text."""
    return tuple(re.findall(r'^        "([^"]+)",$', text, re.MULTILINE))


def marked_in(text: str) -> set[str]:
    """The features of which a module's text has a point, or what is left of one."""
    marks = re.findall(rf"^(?:{_OPENING}|{_CLOSING})([a-z0-9-]+)", text, re.MULTILINE)
    return set(marks)
