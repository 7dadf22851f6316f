"""Names in some folders of a tree: who owns an attribute, and of which class a value is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache, cached_property

from miles_periodic.compat.tree import SourceModule, Tree, read_text
from miles_periodic.hooks.decisions import Evidence

Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Scopes:
    """The modules below some folders of a tree, searched by text first and parsed on demand.

    `without` names files and folders in them that are left out.
    """

    def __init__(self, tree: Tree, folders: Sequence[str], without: Sequence[str] = ()) -> None:
        self.tree = tree
        self.folders = tuple(folders)
        self.without = tuple(f"{tree.upstream}/{path}" for path in without)
        self._owners: dict[str, dict[str, Evidence]] = {}

    @cached_property
    def _defined(self) -> dict[tuple[str, str], list[SourceModule]]:
        """("class" or "def", name) to the modules whose text defines it."""
        pattern = re.compile(r"^[ \t]*(?:async[ \t]+)?(class|def)[ \t]+(\w+)", re.MULTILINE)
        found: dict[tuple[str, str], list[SourceModule]] = {}
        for module in self._containing(""):
            for kind, name in set(pattern.findall(read_text(module.path))):
                found.setdefault((kind, name), []).append(module)
        return found

    @cache  # noqa: B019 - a Scopes lives no longer than one probe
    def mentioning(self, name: str) -> tuple[SourceModule, ...]:
        """The modules in whose text `name` stands as a word."""
        word = re.compile(rf"\b{re.escape(name)}\b")
        return tuple(m for m in self._containing(name) if word.search(m.text))

    def _containing(self, text: str) -> Iterator[SourceModule]:
        for module in self.tree.containing(text, *self.folders):
            if not self.tree.relative(module.path).startswith(self.without):
                yield module

    @cache  # noqa: B019
    def classes(self, name: str) -> tuple[tuple[SourceModule, ast.ClassDef], ...]:
        """Every class of that name."""
        modules = self._defined.get(("class", name), ())
        return tuple((m, node) for m in modules for node in m.classes if node.name == name)

    @cache  # noqa: B019
    def functions(self, name: str) -> tuple[tuple[SourceModule, Function], ...]:
        """Every function and method of that name."""
        modules = self._defined.get(("def", name), ())
        return tuple((m, node) for m in modules for node in m.functions if node.name == name)

    @cache  # noqa: B019
    def aliased(self, name: str) -> str:
        """The class to which a variable or attribute of that name is set, or an empty string."""
        for module in self.mentioning(name):
            for node in ast.walk(module.syntax):
                if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(
                    node.value, ast.Name
                ):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    named = any(words(t)[:1] == [name] for t in targets)
                    if named and self.classes(node.value.id):
                        return node.value.id
        return ""

    @cache  # noqa: B019
    def lineage(self, name: str) -> tuple[tuple[SourceModule, ast.ClassDef], ...]:
        """The classes of that name and, behind them, the bases that the folders define."""
        found: list[tuple[SourceModule, ast.ClassDef]] = []
        names, seen = [name], set()
        while names:
            current = names.pop(0)
            if current not in seen:
                seen.add(current)
                classes = self.classes(current)
                found += classes
                names += [n for _, node in classes for base in node.bases for n in words(base)]
        return tuple(found)

    @cache  # noqa: B019
    def named(self, name: str, attribute: str) -> frozenset[str]:
        """Classes of which some value called `name` is where `attribute` is spoken of."""
        found: set[str] = set()
        for module in self.mentioning(attribute):
            for node in ast.walk(module.syntax):
                if isinstance(node, ast.arg) and node.arg == name:
                    found.update(words(node.annotation))
                elif isinstance(node, ast.Assign | ast.AnnAssign):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    if any(_last_name(target) == name for target in targets):
                        found.update(_made_or_annotated(node))
        return frozenset(word for word in found if self.classes(word))

    @cache  # noqa: B019
    def related(self, one: str, other: str) -> bool:
        """Whether the classes are one, or one is a base of the other."""
        return (
            one == other
            or any(node.name == other for _, node in self.lineage(one))
            or any(node.name == one for _, node in self.lineage(other))
        )

    def owners(self, attribute: str) -> dict[str, Evidence]:
        """Class name to the place where the class declares, sets or defines `attribute`."""
        if attribute not in self._owners:
            found: dict[str, Evidence] = {}
            for module in self.mentioning(attribute):
                for node in ast.walk(module.syntax):
                    owner = _owner_made_by(module, node, attribute)
                    if owner:
                        what = f"{owner}.{attribute}"
                        found.setdefault(owner, module.evidence(node, what))
            self._owners[attribute] = found
        return self._owners[attribute]


def _owner_made_by(module: SourceModule, node: ast.AST, attribute: str) -> str:
    """The class to which a statement gives `attribute`, or an empty string."""
    parent = module.parents.get(node)
    if isinstance(parent, ast.ClassDef):
        declared = isinstance(node, ast.AnnAssign) and words(node.target) == [attribute]
        defined = isinstance(node, FUNCTIONS) and node.name == attribute
        return parent.name if declared or defined else ""
    stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    if stored and node.attr == attribute and words(node.value) == ["self"]:
        owner = module.enclosing(node, ast.ClassDef)
        return owner.name if isinstance(owner, ast.ClassDef) else ""
    return ""


def _last_name(target: ast.expr) -> str:
    if isinstance(target, ast.Attribute):
        return target.attr
    return target.id if isinstance(target, ast.Name) else ""


def _made_or_annotated(node: ast.Assign | ast.AnnAssign) -> list[str]:
    made = words(node.value.func)[:1] if isinstance(node.value, ast.Call) else []
    return made + (words(node.annotation) if isinstance(node, ast.AnnAssign) else [])


def words(node: ast.AST | None) -> list[str]:
    """The names in an annotation or expression, names inside string annotations included."""
    if node is None:
        return []
    found = []
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            found.append(part.id)
        elif isinstance(part, ast.Attribute):
            found.append(part.attr)
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            found += re.findall(r"\w+", part.value)
    return found


def types_of(value: ast.expr, module: SourceModule) -> set[str]:
    """Class names that the source gives for a value; empty where it says nothing.

    Looks at `self`, annotations of parameters and variables, `x = Class(...)`, `isinstance`, and
    the annotation of what a loop runs over.
    """
    if isinstance(value, ast.Call):
        return set(words(value.func)[:1])
    if not isinstance(value, ast.Name):
        return set()
    found: set[str] = set()
    scope = module.enclosing(value, *FUNCTIONS)
    while scope is not None:
        found |= _types_in(scope, value.id, module)
        scope = module.enclosing(scope, *FUNCTIONS)
    return found


def _types_in(function: Function, name: str, module: SourceModule) -> set[str]:
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    annotated = [a for a in every if a.arg == name and a.annotation is not None]
    if annotated:
        return set(words(annotated[0].annotation))
    if name == "self":
        owner = module.parents.get(function)
        return {owner.name} if isinstance(owner, ast.ClassDef) else set()
    found: set[str] = set()
    for node in ast.walk(function):
        found |= _types_from(node, name, module)
    return found


def _types_from(node: ast.AST, name: str, module: SourceModule) -> set[str]:
    """What one statement or expression says about the type of the variable `name`."""
    match node:
        case ast.Assign(targets=[ast.Name(id=target)], value=ast.Call(func=callee)):
            return set(words(callee)) if target == name else set()
        case ast.AnnAssign(target=ast.Name(id=target), annotation=annotation):
            return set(words(annotation)) if target == name else set()
        case ast.Call(func=ast.Name(id="isinstance"), args=[ast.Name(id=target), kinds]):
            return set(words(kinds)) if target == name else set()
        case ast.For(target=ast.Name(id=target), iter=ast.Name() as over):
            return types_of(over, module) if target == name and over.id != name else set()
        case ast.comprehension(target=ast.Name(id=target), iter=ast.Name() as over):
            return types_of(over, module) if target == name and over.id != name else set()
    return set()
