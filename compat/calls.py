"""What a call does with a value that it is given: a constructor, a function, a log line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from miles_periodic.compat.places import Carried, Consumed, Place, Use
from miles_periodic.compat.scopes import FUNCTIONS, Function, Scopes, types_of, words
from miles_periodic.compat.tree import SourceModule, getattr_name

SAY_ONLY = {"str", "repr", "format", "print", "isinstance", "hasattr", "type", "id", "callable"}
_LOG_METHODS = {"debug", "info", "warning", "warn", "error", "exception", "critical", "log"}
_INTO_CONTAINER = {"append", "appendleft", "add", "extend", "insert", "setdefault", "update"}
_MAKES_AN_OBJECT = re.compile(r"^_*[A-Z]|(_|^)(type|cls|class|factory)$")


def into_call(
    call: ast.Call,
    at: ast.keyword | ast.expr,
    argument: str | int,
    module: SourceModule,
    scopes: Scopes,
    derived: bool,
) -> Iterator[Use]:
    """What a call does with the value that it gets at `at` as that keyword or position."""
    name = callee_name(call)
    if name in SAY_ONLY | _INTO_CONTAINER or is_logging(call) or getattr_name(call) is not None:
        return
    if name == "setattr" and argument == 2 and isinstance(call.args[1], ast.Constant):
        place = Place(str(call.args[1].value), owner_of(call.args[0], module), derived=derived)
        yield Carried(place, at, f"sets {place}")
    elif name == "replace" and isinstance(argument, str) and call.args:
        place = Place(argument, owner_of(call.args[0], module), derived=derived)
        yield Carried(place, at, f"replaces {place}")
    else:
        yield from _into_definition(call, at, argument, module, scopes, derived)


def _into_definition(
    call: ast.Call,
    at: ast.keyword | ast.expr,
    argument: str | int,
    module: SourceModule,
    scopes: Scopes,
    derived: bool,
) -> Iterator[Use]:
    """Into the constructor or function that is called; consumed where neither is defined here."""
    name = callee_name(call)
    made = _constructed(call, name, module, scopes)
    called = f"{made[0] if made else name}({f'{argument}=' if isinstance(argument, str) else '…'})"
    for base in made:
        place = _constructor_place(scopes.lineage(base), argument, derived)
        if place is not None:
            yield Carried(place, at, f"gives it to {called}")
    functions = [] if made else _callees(call, name, module, scopes)
    for owner, function in functions:
        place = _parameter_place(owner, function, argument, derived)
        if place is not None:
            yield Carried(place, at, f"passes it to {called}")
    if name and not made and not functions and not _MAKES_AN_OBJECT.search(name):
        yield Consumed(at, f"passes it to {called}")


def _callees(
    call: ast.Call, name: str, module: SourceModule, scopes: Scopes
) -> list[tuple[SourceModule, Function]]:
    """The functions that a call can mean: `f(…)` no method, `x.f(…)` one of x's class if known."""
    found = [(m, f, m.parents.get(f)) for m, f in scopes.functions(name)]
    if isinstance(call.func, ast.Name):
        return [(m, f) for m, f, owner in found if not isinstance(owner, ast.ClassDef)]
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    types = types_of(receiver, module) if receiver is not None else set()
    if isinstance(receiver, ast.Name) and scopes.classes(receiver.id):
        types = {receiver.id}
    known = [t for t in types if scopes.classes(t)]
    if not known:
        return [(m, f) for m, f, _ in found]
    methods = [(m, f, o.name) for m, f, o in found if isinstance(o, ast.ClassDef)]
    return [(m, f) for m, f, owner in methods if any(scopes.related(t, owner) for t in known)]


def _constructed(call: ast.Call, name: str, module: SourceModule, scopes: Scopes) -> list[str]:
    """The classes that a call makes an instance of, `cls(…)` and `super().__init__(…)` included."""
    owner = module.enclosing(call, ast.ClassDef)
    if isinstance(owner, ast.ClassDef) and name == "cls":
        return [owner.name]
    if isinstance(owner, ast.ClassDef) and name == "__init__":
        return [base for node in owner.bases for base in words(node)[-1:]]
    if scopes.classes(name):
        return [name]
    alias = "" if scopes.functions(name) else scopes.aliased(name)
    return [alias] if alias else []


def _constructor_place(
    lineage: tuple[tuple[SourceModule, ast.ClassDef], ...], argument: str | int, derived: bool
) -> Place | None:
    """Where a constructor's argument goes: the parameter of `__init__`, or a declared field."""
    fields: list[str] = []
    for module, node in lineage:
        for part in node.body:
            if isinstance(part, FUNCTIONS) and part.name == "__init__":
                return _parameter_place(module, part, argument, derived)
        own = [p.target.id for p in node.body if _is_field(p)]
        fields = own + fields
    if isinstance(argument, int):
        argument = fields[argument] if argument < len(fields) else ""
    known = argument in fields
    return Place(argument, lineage[0][1].name, derived=derived) if known else None


def _is_field(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)


def _parameter_place(
    module: SourceModule, function: Function, argument: str | int, derived: bool
) -> Place | None:
    arguments = function.args
    positional = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    is_method = isinstance(module.parents.get(function), ast.ClassDef)
    if is_method and positional[:1] in (["self"], ["cls"]):
        positional = positional[1:]
    if isinstance(argument, int):
        name = positional[argument] if argument < len(positional) else ""
    else:
        name = argument
    accepted = name in positional or name in [a.arg for a in arguments.kwonlyargs]
    accepted = accepted or bool(arguments.kwarg and name)
    return Place(name, None, module, function, derived) if accepted else None


def owner_of(value: ast.expr, module: SourceModule) -> str | None:
    """The one class that a value is of, as far as the source says."""
    types = types_of(value, module)
    return types.pop() if len(types) == 1 else None


def callee_name(call: ast.Call) -> str:
    """The last word of what is called, such as `get_topk` of `capturer.get_topk(…)`."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def is_logging(call: ast.Call) -> bool:
    """Whether a call writes a log line or a warning."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _LOG_METHODS:
        return False
    receiver = words(call.func.value)
    return bool(receiver) and receiver[0].lstrip("_") in {"logger", "logging", "log", "warnings"}
