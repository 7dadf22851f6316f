"""The codemod of every patch set: a feature's binding points at the ends of the modules it touches.

It is made from the feature's bindings, so that what is patched and what is injected cannot differ.
LibCST finds each target's definition, tells how the file ends its lines, and reads what was made;
all other bytes stay, also those that it would write otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from miles_periodic.hooks.binding_points import marked_in, point, points_in
from miles_periodic.hooks.errors import PeriodicError


@dataclass(frozen=True, slots=True)
class PointInFile:
    """One feature's binding point in one file.

    file: relative to the checkout's root. names: the bindings. targets: the dotted names of their
    definitions in the file.
    """

    file: str
    feature: str
    names: tuple[str, ...]
    targets: tuple[str, ...]

    def is_in(self, source: bytes) -> bool:
        """Whether the file has the point, with these bindings."""
        written = points_in(_text(source)).get(self.feature, "")
        expected = {point(self.feature, self.names, unfinished=u) for u in (True, False)}
        return written in expected

    def is_marked_in(self, source: bytes) -> bool:
        """Whether the file has a point of the feature, or what is left of one."""
        return self.feature in marked_in(_text(source))


def without_point(source: bytes, feature: str, file: str) -> bytes:
    """The file without a feature's point: byte by byte what it was before.

    Raises PeriodicError where the point is not as it was written.
    """
    written = points_in(_text(source)).get(feature)
    if written is None:
        if feature in marked_in(_text(source)):
            expected = f"the lines from '# >>> miles-periodic: {feature}' on as they were written"
            raise _unlike(file, expected, "they were changed")
        return source
    for ending in ("\r\n", "\n"):
        text = written.replace("\n", ending).encode()
        if text in source:
            head, _, tail = source.rpartition(text)
            return head + tail
    raise _unlike(file, "one kind of line ends in a binding point", "several")


def without_points(source: bytes, file: str) -> bytes:
    """The file without any feature's point."""
    for feature in points_in(_text(source)):
        source = without_point(source, feature, file)
    return source


def check(points: Sequence[PointInFile], sources: Mapping[str, bytes]) -> None:
    """Raise PeriodicError where a target is not defined in its file, or LibCST cannot read one."""
    definitions = _definitions()
    for each in points:
        module = _module(sources[each.file], each.file)
        for target in each.targets:
            definitions.find(module, target)


def put_in(points: Sequence[PointInFile], sources: Mapping[str, bytes]) -> dict[str, bytes]:
    """File to its text with all of those points behind its last line, of the files that change.

    Raises PeriodicError as `check` does.
    """
    check(points, sources)
    missing: dict[str, list[PointInFile]] = {}
    for each in points:
        if not each.is_in(sources[each.file]):
            missing.setdefault(each.file, []).append(each)
    return {file: _appended(file, sources[file], added) for file, added in missing.items()}


def _appended(file: str, source: bytes, points: Sequence[PointInFile]) -> bytes:
    unfinished = bool(source) and not source.endswith((b"\n", b"\r"))
    texts = [
        point(each.feature, each.names, unfinished=unfinished and each is points[0])
        for each in points
    ]
    module = _module(source, file)
    ended = "".join(texts).replace("\n", module.default_newline)
    written = source + ended.encode(module.encoding)
    _definitions().parsed(written, file)
    return written


@lru_cache(maxsize=32)
def _module(source: bytes, file: str):
    return _definitions().parsed(source, file)


def sources_of(root: Path, points: Sequence[PointInFile]) -> dict[str, bytes]:
    """File to its bytes, for every file that the points stand in."""
    return {each.file: (root / each.file).read_bytes() for each in points}


def _text(source: bytes) -> str:
    return source.decode("utf-8", errors="replace")


def _definitions():
    try:
        from miles_periodic.patches import definitions
    except ModuleNotFoundError as error:
        if error.name != "libcst":
            raise
        raise PeriodicError(
            "LibCST is not installed, and patch sets are made with it.",
            remedy="Install miles-periodic[patches].",
        ) from error
    return definitions


def _unlike(file: str, expected: str, found: str) -> PeriodicError:
    return PeriodicError(
        f"{file} cannot be patched or put back as it is.",
        target=file,
        expected=expected,
        found=found,
        remedy="Take those lines out by hand, or restore the file.",
    )
