"""What the sources of a tree must show, as plain values: written as data, judged by `compat`.

A condition is a table with one of these keys:

    {defines = "sglang.srt.x:Class.method"}              the tree defines it
    {declares = "Class.field", in = ["srt/managers"]}    a class in those places has that field
    {reads = "field", in = [...]}                        something there reads such an attribute
    {consumes = "Class.field", in = [...]}               its value gets to where it decides
    {text = "…", in = "sglang.srt.x:Class.method"}       the code there says so
    {any = [condition, …]}, {not = condition}

`in` names definitions (`module:name`), files or folders (relative to the package); of several, one
is enough, as files move. `text` is sought in code as `ast.unparse` writes it: no comments, no
docstrings, single quotes. `consumes` also takes `without` (side paths) and `through` (a class
that the value must get into).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Defines:
    """The tree has one of these definitions, `package.module:Class.method` or `package.module`."""

    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Declares:
    """A class of that name declares the field in some of the places."""

    owner: str
    field: str
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reads:
    """Something in the places reads an attribute of that name."""

    attribute: str
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Consumes:
    """The field is declared, and its value gets to something that decides by it."""

    owner: str
    field: str
    places: tuple[str, ...]
    without: tuple[str, ...] = ()
    through: str = ""


@dataclass(frozen=True, slots=True)
class Says:
    """The text stands in the code of one of the places."""

    text: str
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """One of the conditions holds."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AllOf:
    """Every one of the conditions holds; of none, never."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """The condition does not hold."""

    condition: Condition


Condition = Defines | Declares | Reads | Consumes | Says | AnyOf | AllOf | Not


@dataclass(frozen=True, slots=True)
class Replacement:
    """A change upstream that makes some of our bindings needless where a tree has it.

    key: the ledger's. upstream: whose trees can have it. bindings: the names of ours.
    """

    key: str
    upstream: str
    condition: Condition
    bindings: tuple[str, ...]


def condition_from(part: Any) -> Condition:
    """The condition that a table of the form above is, or a list of them, all of which must hold.

    Raises ValueError where it is none; the text says what is wrong with it.
    """
    if isinstance(part, list):
        return AllOf(tuple(map(condition_from, part)))
    if not isinstance(part, Mapping):
        raise ValueError(f"{part!r} is no condition")
    kinds = [kind for kind in _KEYS if kind in part]
    if len(kinds) != 1:
        raise ValueError(f"{part!r} has not exactly one of {', '.join(_KEYS)}")
    unknown = set(part) - {kinds[0], *_KEYS[kinds[0]]}
    if unknown:
        raise ValueError(f"{part!r} has keys that {kinds[0]} does not take: {', '.join(unknown)}")
    return _made(kinds[0], part)


_KEYS: dict[str, tuple[str, ...]] = {
    "defines": (),
    "declares": ("in",),
    "reads": ("in",),
    "consumes": ("in", "without", "through"),
    "text": ("in",),
    "any": (),
    "not": (),
}


def _made(kind: str, part: Mapping[str, Any]) -> Condition:
    value, places = part[kind], _listed(part.get("in", ()))
    if "in" in _KEYS[kind] and not places:
        raise ValueError(f"{part!r} does not say in which places: in = […]")
    match kind:
        case "defines":
            return Defines(_listed(value))
        case "declares":
            return Declares(*_owner_and_field(value), places)
        case "reads":
            return Reads(value, places)
        case "consumes":
            owner, field = _owner_and_field(value)
            without = _listed(part.get("without", ()))
            return Consumes(owner, field, places, without, part.get("through", ""))
        case "text":
            return Says(value, places)
        case "any":
            return AnyOf(tuple(map(condition_from, value)))
    return Not(condition_from(value))


def _owner_and_field(value: str) -> tuple[str, str]:
    owner, dot, field = value.rpartition(".")
    if not (owner and dot and field):
        raise ValueError(f"{value!r} is not Class.field")
    return owner, field


def _listed(value: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
