"""Source files as LibCST reads them, and where in one a target is defined.

A target is a dotted name at the module's top level, such as `Class.method`, looked for through
`if`, `try` and `with`; where it is defined more than once, the last one counts, as at run time.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from miles_periodic.hooks.errors import PeriodicError

Definition = cst.FunctionDef | cst.ClassDef


class SourceError(PeriodicError):
    """The file cannot be read, or has not the definition that is looked for."""


def parsed(source: bytes | str, name: str = "the file") -> cst.Module:
    """A file's text as a LibCST module; `name` is for the error where it is no Python."""
    try:
        return cst.parse_module(source)
    except (cst.ParserSyntaxError, UnicodeDecodeError, LookupError) as error:
        raise SourceError(
            f"{name} is not Python that LibCST can read: {error}.",
            target=name,
            expected="a source file without syntax errors",
            found=str(error).partition("\n")[0],
            remedy="Repair the file.",
        ) from error


def find(module: cst.Module, target: str) -> Definition:
    """The definition of a target; SourceError where there is none."""
    scope: cst.Module | Definition = module
    for part in target.split("."):
        found = [node for node in _defined_in(scope) if node.name.value == part]
        if not found:
            raise SourceError(
                f"{target} is not defined in its file.",
                target=target,
                expected=f"a definition of {part}",
                found="no such definition",
                remedy="Use a tree whose shape is known.",
            )
        scope = found[-1]
    return scope


def _defined_in(scope: cst.CSTNode) -> Iterator[Definition]:
    """The definitions in a body, in the order of the text."""
    body = scope.body.body if isinstance(scope.body, cst.BaseSuite) else scope.body
    for node in body:
        if isinstance(node, Definition):
            yield node
        elif isinstance(node, cst.If | cst.Try | cst.TryStar | cst.With):
            for branch in _branches(node):
                yield from _defined_in(branch)


def _branches(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """A compound statement and all that hang on it: handlers, `else`, `elif`, `finally`."""
    yield node
    yield from getattr(node, "handlers", ())
    for name in ("orelse", "finalbody"):
        branch = getattr(node, name, None)
        if branch is not None:
            yield from _branches(branch)
