"""Where a followed value can be, and how it got there or ended."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from miles_periodic.compat.scopes import FUNCTIONS, words
from miles_periodic.compat.tree import SourceModule


@dataclass(frozen=True)
class Place:
    """Where a value can be found: an attribute, a variable of one function, or a result.

    owner: for an attribute or a method's result the class, or None where the source does not say.
    scope: for a variable the function (or module body) that holds it.
    derived: arithmetic was done on the value, or it was packed with others.
    """

    name: str
    owner: str | None = None
    module: SourceModule | None = None
    scope: ast.AST | None = None
    derived: bool = False

    def __str__(self) -> str:
        if self.scope is None:
            return f"{self.owner}.{self.name}" if self.owner else f"attribute {self.name}"
        function = self.module.qualname(self.scope) if self.module else ""
        return f"{self.name} in {function}" if function else self.name


@dataclass(frozen=True)
class Carried:
    """The value goes on under `place`; `how` says in which expression."""

    place: Place
    node: ast.AST
    how: str


@dataclass(frozen=True)
class Consumed:
    """The value decides something."""

    node: ast.AST
    how: str


Use = Carried | Consumed


def reads_in(place: Place) -> Iterator[ast.expr]:
    """Every expression in a variable's scope that reads it, `**kwargs` that hold it included."""
    scope, module = place.scope, place.module
    if scope is None or module is None:
        return
    packed = scope.args.kwarg.arg if isinstance(scope, FUNCTIONS) and scope.args.kwarg else ""
    for node in ast.walk(scope):
        if not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)):
            continue
        if node.id == place.name:
            yield node
        elif node.id == packed:
            yield from _unpacked(node, place.name, module)


def _unpacked(packed: ast.Name, name: str, module: SourceModule) -> Iterator[ast.expr]:
    """Reads of `name` in `f(**kwargs)`, `kwargs["name"]`, `kwargs.get("name")`, `kwargs.pop(…)`."""
    parent = module.parents[packed]
    if isinstance(parent, ast.keyword) and parent.arg is None:
        yield packed
    elif isinstance(parent, ast.Subscript) and words(parent.slice) == [name]:
        yield parent
    elif isinstance(parent, ast.Attribute) and parent.attr in {"get", "pop"}:
        call = module.parents[parent]
        if isinstance(call, ast.Call) and call.args and words(call.args[0]) == [name]:
            yield call
