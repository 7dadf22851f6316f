"""What became of the targets of a feature's bindings from one tree to another, for people."""

from __future__ import annotations

import ast
import copy
import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from miles_periodic.compat import fingerprints
from miles_periodic.compat.catalog import BINDINGS
from miles_periodic.compat.tree import Definition, Tree


@dataclass(frozen=True, slots=True)
class Change:
    """One target that is not as it was.

    what: `gone`, `new`, `signature` or `body`. detail: lines for people; of a body, a unified
    diff of the code without comments, docstrings and line numbers.
    known: whether the shape that it has now is one that the adapters were written for.
    """

    target: str
    what: str
    detail: tuple[str, ...]
    known: bool


def changes(names: Iterable[str], before: Tree, now: Tree) -> tuple[Change, ...]:
    """The targets of those bindings that are not the same in both trees, sorted."""
    targets = sorted({target for name in names for target in BINDINGS[name].targets})
    found = (_change(target, before, now) for target in targets)
    return tuple(change for change in found if change is not None)


def _change(target: str, before: Tree, now: Tree) -> Change | None:
    was, is_now = before.find(target), now.find(target)
    if was is None and is_now is None:
        return None
    if is_now is None:
        return Change(target, "gone", (f"not in {now.name}",), False)
    shape = fingerprints.fingerprint_of(is_now[1])
    known = shape in [k.fingerprint for k in fingerprints.known_shapes().get(target, ())]
    if was is None:
        return Change(target, "new", (shape.signature,), known)
    earlier = fingerprints.fingerprint_of(was[1])
    if earlier == shape:
        return None
    kind = "body" if earlier.signature == shape.signature else "signature"
    return Change(target, kind, tuple(_detail(was[1], is_now[1])), known)


def _detail(was: Definition, now: Definition) -> Iterator[str]:
    """The signature's parameters that came and went, the calls likewise, and the diff."""
    yield from _came_and_went("parameter", _parameters(was), _parameters(now))
    yield from _came_and_went("call", _calls(was), _calls(now))
    yield from difflib.unified_diff(_lines(was), _lines(now), "before", "now", lineterm="", n=2)


def _came_and_went(kind: str, was: list[str], now: list[str]) -> Iterator[str]:
    for text, names in (
        (f"no longer {kind}", [name for name in was if name not in now]),
        (f"new {kind}", [name for name in now if name not in was]),
    ):
        if names:
            yield f"{text}{'s' if len(names) > 1 else ''}: {', '.join(names)}"


def _parameters(definition: Definition) -> list[str]:
    if isinstance(definition, ast.ClassDef):
        return [ast.unparse(base) for base in definition.bases]
    arguments = definition.args
    listed = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    stars = [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
    return [argument.arg for argument in (*listed, *stars)]


def _calls(definition: Definition) -> list[str]:
    found = [ast.unparse(node.func) for node in ast.walk(definition) if isinstance(node, ast.Call)]
    return [name for name in dict.fromkeys(found) if len(name) < 60 and "\n" not in name]


def _lines(definition: Definition) -> list[str]:
    bare = copy.deepcopy(definition)
    for node in ast.walk(bare):
        if isinstance(node, Definition) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(bare).splitlines()
