"""Whether a tree's sources show what a condition asks for, with the places that decided it."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from miles_periodic.compat.follow import follow
from miles_periodic.compat.scopes import Scopes
from miles_periodic.compat.tree import Definition, SourceModule, Tree
from miles_periodic.hooks.conditions import (
    AllOf,
    AnyOf,
    Condition,
    Consumes,
    Declares,
    Defines,
    Not,
    Reads,
    Says,
)
from miles_periodic.hooks.decisions import Evidence


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a condition holds, and where that was seen; line 0 is evidence of an absence."""

    holds: bool
    evidence: tuple[Evidence, ...]


def judge(condition: Condition, tree: Tree) -> Verdict:
    """Whether `condition` holds in `tree`; PeriodicError where a source cannot be parsed."""
    match condition:
        case Defines(targets=targets):
            return _first([_defined(target, tree) for target in targets])
        case Declares(owner=owner, field=field, places=places):
            return _declared(owner, field, places, tree)
        case Reads(attribute=attribute, places=places):
            return _read(attribute, places, tree)
        case Consumes():
            return _consumed(condition, tree)
        case Says(text=text, places=places):
            return _said(text, places, tree)
        case AnyOf(conditions=conditions):
            return _first([judge(each, tree) for each in conditions])
        case AllOf(conditions=conditions):
            return _every([judge(each, tree) for each in conditions])
        case Not(condition=denied):
            verdict = judge(denied, tree)
            return Verdict(not verdict.holds, verdict.evidence)


def _first(verdicts: Sequence[Verdict]) -> Verdict:
    """The first that holds; where none does, all that was missed."""
    missed = tuple(piece for verdict in verdicts for piece in verdict.evidence)
    return next((v for v in verdicts if v.holds), Verdict(False, missed))


def _every(verdicts: Sequence[Verdict]) -> Verdict:
    """What all of them saw; where one does not hold, what it missed."""
    for verdict in verdicts:
        if not verdict.holds:
            return verdict
    return Verdict(bool(verdicts), tuple(e for verdict in verdicts for e in verdict.evidence))


def _defined(target: str, tree: Tree) -> Verdict:
    if ":" not in target:
        module = tree.module(target)
        seen = module.evidence(1, "is there") if module else _absent(target, "is not there")
        return Verdict(module is not None, (seen,))
    found = tree.find(target)
    if found is None:
        module, _, qualname = target.partition(":")
        return Verdict(False, (_absent(module, f"{qualname} is not there"),))
    source, definition = found
    return Verdict(True, (source.evidence(definition, f"{target.partition(':')[2]} is defined"),))


def _declared(owner: str, field: str, places: Sequence[str], tree: Tree) -> Verdict:
    where = Scopes(tree, places).owners(field).get(owner)
    if where is None:
        return _missed(places, tree, f"{owner} has no field {field}")
    return Verdict(True, (where,))


def _read(attribute: str, places: Sequence[str], tree: Tree) -> Verdict:
    for module, node in _nodes(places, tree, attribute):
        inside = set(ast.walk(node)) if node is not module.syntax else None
        for read in module.attribute_loads.get(attribute, ()):
            if inside is None or read in inside:
                name = module.qualname(read) or "the module"
                return Verdict(True, (module.evidence(read, f"{name} reads {attribute}"),))
    return _missed(places, tree, f"nothing reads {attribute}")


def _consumed(condition: Consumes, tree: Tree) -> Verdict:
    trail = follow(
        tree,
        condition.owner,
        condition.field,
        condition.places,
        without=condition.without,
        through=condition.through,
    )
    missing = () if trail.consumer else (_absent(tree.upstream, trail.missing),)
    return Verdict(trail.consumer is not None, (*trail.evidence, *missing))


def _said(text: str, places: Sequence[str], tree: Tree) -> Verdict:
    longest_word = max(re.findall(r"\w+", text), key=len, default="")
    for module, node in _nodes(places, tree, longest_word):
        if text in _code(module, node):
            return Verdict(True, (module.evidence(_innermost(node, text), f"says {text}"),))
    return _missed(places, tree, f"does not say {text}")


def _nodes(
    places: Sequence[str], tree: Tree, word: str = ""
) -> Iterator[tuple[SourceModule, ast.AST]]:
    """Each place that the tree has: a definition, or every module of a file or folder."""
    for place in places:
        if ":" in place:
            found = tree.find(place)
            if found:
                yield found
        else:
            yield from ((module, module.syntax) for module in tree.containing(word, place))


@lru_cache(maxsize=512)
def _code(module: SourceModule, node: ast.AST) -> str:
    """Code as `ast.unparse` writes it, without docstrings."""
    bare = copy.deepcopy(node)
    for part in ast.walk(bare):
        documented = isinstance(part, Definition | ast.Module)
        if documented and ast.get_docstring(part, clean=False) is not None:
            part.body = part.body[1:] or [ast.Pass()]
    return ast.unparse(bare)


def _innermost(node: ast.AST, text: str) -> ast.AST | int:
    """The smallest statement or expression in a node that says it; line 1 where it takes many."""
    for part in ast.iter_child_nodes(node):
        if text in ast.unparse(part):
            return _innermost(part, text)
    return node if hasattr(node, "lineno") else 1


def _missed(places: Sequence[str], tree: Tree, what: str) -> Verdict:
    """That none of the places shows it; the first one that the tree has stands for them."""
    for place in places:
        if ":" in place:
            found = tree.find(place)
            if found:
                return Verdict(False, (found[0].evidence(found[1], what),))
        elif any((portion / place).exists() for portion in tree.portions):
            return Verdict(False, (Evidence(f"{tree.upstream}/{place}", 0, what),))
    return Verdict(False, (_absent(places[0].partition(":")[0], f"{what}: it is not there"),))


def _absent(module: str, what: str) -> Evidence:
    dotted = "/" not in module and not module.endswith(".py")
    return Evidence(f"{module.replace('.', '/')}.py" if dotted else module, 0, what)
