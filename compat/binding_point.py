"""A binding point: the statement at the end of a patched module that puts its bindings in.

It does at import what an import hook does right after it, by the same code, so that a patched tree
and an injected one behave alike: composed with other bindings in the catalog's order, and before
anybody can bind a name of the module. Around the definitions themselves it would come earlier than
the stand-ins and the meter of a rehearsal, and their fingerprints would be others. Without a run's
gate it is one environment look-up, as the .pth line is, and imports nothing.
"""

from __future__ import annotations

import re
import sys
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


def bind(module: str, *names: str) -> None:
    """Put in whatever waits for a module, at its end; `names` stand in its sources.

    Starts this process's part in the run where the .pth line did not. A module that runs under
    another name, such as `__main__`, is not the one that bindings are made for.
    """
    from miles_periodic.compat import after_import, boot

    boot.start()
    after_import.run(sys.modules[module])
    boot.member().report_in_sources(names)


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
