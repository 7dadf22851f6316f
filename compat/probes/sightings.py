"""The few AST shapes that probes look for."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from miles_periodic.compat.scopes import words
from miles_periodic.hooks.decisions import Evidence


def absent(target: str) -> Evidence:
    """Evidence that a tree has no such target."""
    module, _, qualname = target.partition(":")
    return Evidence(f"{module.replace('.', '/')}.py", 0, f"{qualname} is not there")


def key_writes(node: ast.AST, key: str) -> Iterator[ast.AST]:
    """Where `key` is put into a dictionary: `{"key": x}`, `d["key"] = x`, `dict(key=x)`."""
    for part in ast.walk(node):
        if isinstance(part, ast.Dict):
            yield from (k for k in part.keys if isinstance(k, ast.Constant) and k.value == key)
        elif isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Store):
            if isinstance(part.slice, ast.Constant) and part.slice.value == key:
                yield part
        elif isinstance(part, ast.Call) and words(part.func)[-1:] in (["dict"], ["update"]):
            yield from (k for k in part.keywords if k.arg == key)


def calls(node: ast.AST, name: str) -> Iterator[ast.Call]:
    """Calls of `name(…)`, `x.name(…)` and `x.name.remote(…)`."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call):
            callee = part.func
            if isinstance(callee, ast.Attribute) and callee.attr == "remote":
                callee = callee.value
            last = callee.attr if isinstance(callee, ast.Attribute) else words(callee)[-1:]
            if last in (name, [name]):
                yield part


def mentions(node: ast.AST, value: str) -> bool:
    """Whether the string constant `value` stands anywhere in a node."""
    return any(isinstance(p, ast.Constant) and p.value == value for p in ast.walk(node))


def comparisons(node: ast.AST, attribute: str, value: str) -> Iterator[ast.Compare]:
    """Comparisons `x.attribute == "value"`."""
    for part in ast.walk(node):
        equal = isinstance(part, ast.Compare) and isinstance(part.ops[0], ast.Eq)
        if equal and mentions(part, value):
            sides = [part.left, *part.comparators]
            if any(isinstance(s, ast.Attribute) and s.attr == attribute for s in sides):
                yield part


def imports(node: ast.AST, module: str) -> Iterator[tuple[ast.ImportFrom, str]]:
    """`from module import name` and the name under which it is known there."""
    for part in ast.walk(node):
        if isinstance(part, ast.ImportFrom) and part.module == module:
            for alias in part.names:
                yield part, alias.asname or alias.name
