"""What the steps of a contribution make of a base's files, before anything of it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.upstream.contributions import Contribution, NotFound, Step

#: Path to the text of a file, or None where there is none.
Files = Callable[[str], str | None]


def changed_by(contribution: Contribution, files: Files) -> Iterator[dict[str, str]]:
    """Path to its new text, for each step in order; `files` are those of the base.

    Nothing is written. NotFound says which target is not as it was when the change was written.
    """
    ours: dict[str, str] = {}

    def now(path: str) -> str | None:
        return ours.get(path, files(path))

    for step in contribution.steps:
        changed = {path: _added(contribution, path, now) for path in step.adds}
        for path in dict.fromkeys(edit.file for edit in step.edits):
            changed[path] = _edited(path, step, now)
        ours |= changed
        yield changed


def _added(contribution: Contribution, path: str, files: Files) -> str:
    if files(path) is not None:
        raise NotFound(path, "no such file yet", "a file")
    return contribution.text(path)


def _edited(path: str, step: Step, files: Files) -> str:
    text = files(path)
    if text is None:
        raise NotFound(path, "a file that the change edits", "no such file")
    return _edits().edited(text, [edit for edit in step.edits if edit.file == path])


def _edits() -> Any:
    try:
        from miles_periodic.upstream import edits
    except ImportError as error:
        raise PeriodicError(
            "LibCST is not installed, and editing sources needs it.",
            remedy="Run: pip install 'miles-periodic[upstream]'.",
        ) from error
    return edits
