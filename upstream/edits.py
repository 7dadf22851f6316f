"""Edits of a module by its structure: a statement is found by what it does, never by its text.

Formatting, comments and everything around the statement may change; where the statement itself is
gone, or two are like it, the edit is refused. What an edit can do is told in contributions.py.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence

import libcst as cst
from libcst.codemod import CodemodContext
from libcst.codemod.visitors import AddImportsVisitor

from miles_periodic.upstream.contributions import Edit, NotFound, Statement

#: The compound statements of which only the head is searched: their bodies are searched one by one.
_COMPOUND = (cst.If, cst.For, cst.While, cst.With, cst.Try, cst.FunctionDef, cst.ClassDef)


def edited(text: str, edits: Sequence[Edit]) -> str:
    """The module's text after those edits; NotFound names the first that finds no place."""
    for edit in edits:
        if edit.do == "line":
            text = _line(text, edit)
        else:
            text = _DOINGS[edit.do](cst.parse_module(text), edit).code
    return text


def _line(text: str, edit: Edit) -> str:
    lines = text.splitlines(keepends=True)
    found = [number for number, line in enumerate(lines, 1) if edit.old in line]
    if len(found) != 1:
        has = f"{len(found)} of them" if found else "none"
        raise NotFound(edit.target, f"one line with {edit.old}", has)
    lines.insert(found[0], edit.code.rstrip("\n") + "\n")
    return "".join(lines)


def _import(module: cst.Module, edit: Edit) -> cst.Module:
    context = CodemodContext()
    for line in cst.parse_module(edit.code).body:
        (statement,) = line.body
        if isinstance(statement, cst.ImportFrom):
            source = cst.Module([]).code_for_node(statement.module)
            for alias in statement.names:
                AddImportsVisitor.add_needed_import(context, source, alias.evaluated_name)
        else:
            for alias in statement.names:
                AddImportsVisitor.add_needed_import(context, alias.evaluated_name)
    return AddImportsVisitor(context).transform_module(module)


def _before(module: cst.Module, edit: Edit) -> cst.Module:
    def in_front(found: cst.CSTNode) -> list[cst.CSTNode]:
        new, blank = _spaced(edit.code, found)
        return [*new, found.with_changes(leading_lines=found.leading_lines[blank:])]

    return _put(module, edit, in_front)


def _after(module: cst.Module, edit: Edit) -> cst.Module:
    return _put(module, edit, lambda found: [found, *_statements(edit.code)])


def _replace(module: cst.Module, edit: Edit) -> cst.Module:
    return _put(module, edit, lambda found: _spaced(edit.code, found)[0])


def _branch(module: cst.Module, edit: Edit) -> cst.Module:
    (ours,) = _statements(edit.code)

    def in_front(found: cst.CSTNode) -> list[cst.CSTNode]:
        chained = found.with_changes(leading_lines=())
        return [ours.with_changes(orelse=chained, leading_lines=found.leading_lines)]

    return _put(module, edit, in_front)


def _append(module: cst.Module, edit: Edit) -> cst.Module:
    new = _statements(edit.code)
    if not edit.within:
        return module.with_changes(body=[*module.body, *new])
    owner = _definition(module, edit)
    block = owner.body.with_changes(body=[*owner.body.body, *new])
    return module.deep_replace(owner, owner.with_changes(body=block))


def _expression(module: cst.Module, edit: Edit) -> cst.Module:
    owner = _definition(module, edit) if edit.within else module
    old = cst.parse_expression(edit.old)
    found = _matches(owner, lambda node: type(node) is type(old) and _plain(node) == _plain(old))
    only = _one(found, edit, f"one expression {edit.old}")
    return module.deep_replace(only, cst.parse_expression(edit.code))


_DOINGS: Mapping[str, Callable[[cst.Module, Edit], cst.Module]] = {
    "import": _import,
    "before": _before,
    "after": _after,
    "replace": _replace,
    "branch": _branch,
    "append": _append,
    "expression": _expression,
}


def _put(
    module: cst.Module, edit: Edit, new: Callable[[cst.CSTNode], list[cst.CSTNode]]
) -> cst.Module:
    """The module with other statements in the place of the one that the edit means."""
    owner = _definition(module, edit) if edit.within else module
    found = _matches(owner, lambda node: _is_statement(node) and _fits(edit.at, node))
    return module.visit(_Put(_one(found, edit, str(edit.at)), new))


class _Put(cst.CSTTransformer):
    def __init__(self, target: cst.CSTNode, new: Callable[[cst.CSTNode], list[cst.CSTNode]]):
        super().__init__()
        self._target, self._new = target, new

    def on_leave(self, original_node, updated_node):
        if original_node is self._target:
            return cst.FlattenSentinel(self._new(updated_node))
        return super().on_leave(original_node, updated_node)


def _one(found: Sequence[cst.CSTNode], edit: Edit, expected: str) -> cst.CSTNode:
    if len(found) != 1:
        raise NotFound(edit.target, expected, f"{len(found)} of them" if found else "none")
    return found[0]


def _definition(module: cst.Module, edit: Edit) -> cst.FunctionDef | cst.ClassDef:
    body: Sequence[cst.CSTNode] = module.body
    found: cst.CSTNode | None = None
    for name in edit.within.split("."):
        named = [
            node
            for node in body
            if isinstance(node, cst.FunctionDef | cst.ClassDef) and node.name.value == name
        ]
        found = _one(named, edit, f"one definition of {name}")
        body = found.body.body
    return found


def _statements(code: str) -> list[cst.CSTNode]:
    module = cst.parse_module(code.rstrip() + "\n")
    first, *rest = module.body
    lead = [*module.header, *first.leading_lines]
    # A blank line at the start is one of the code only where two of them are written.
    lead = [each if each.comment else each.with_changes(indent=False) for each in lead]
    return [first.with_changes(leading_lines=lead), *rest]


def _spaced(code: str, found: cst.CSTNode) -> tuple[list[cst.CSTNode], int]:
    """The code with the blank lines above `found`, and their number, where it starts with none."""
    first, *rest = _statements(code)
    if first.leading_lines:
        return [first, *rest], 0
    comments = [k for k, line in enumerate(found.leading_lines) if line.comment]
    blank = min(comments, default=len(found.leading_lines))
    return [first.with_changes(leading_lines=found.leading_lines[:blank]), *rest], blank


def _fits(wanted: Statement, node: cst.CSTNode) -> bool:
    """Whether this node of a module is such a statement."""
    if wanted.tests and not (isinstance(node, cst.If) and wanted.tests in _names(node.test)):
        return False
    head = _head(node)
    return (
        (not wanted.defines or wanted.defines == _defined(node))
        and (not wanted.assigns or wanted.assigns in _assigned(node))
        and (not wanted.returns or wanted.returns in _returned(node))
        and (not wanted.calls or wanted.calls in _called(head))
        and (not wanted.passes or wanted.passes in _strings(head))
        and (not wanted.holds or wanted.holds in _names(node))
    )


def _is_statement(node: cst.CSTNode) -> bool:
    return isinstance(node, (cst.SimpleStatementLine, *_COMPOUND))


def _head(node: cst.CSTNode) -> cst.CSTNode:
    """The node without the statements below it."""
    if not isinstance(node, _COMPOUND):
        return node
    changes: dict[str, object] = {"body": cst.SimpleStatementSuite([cst.Pass()])}
    if isinstance(node, cst.If | cst.For | cst.While | cst.Try):
        changes["orelse"] = None
    if isinstance(node, cst.Try):
        changes |= {"handlers": [], "finalbody": cst.Finally(changes["body"])}
    return node.with_changes(**changes)


class _Matches(cst.CSTVisitor):
    def __init__(self, fits: Callable[[cst.CSTNode], bool]) -> None:
        super().__init__()
        self._fits, self.found = fits, []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if self._fits(node):
            self.found.append(node)
        return True


def _matches(owner: cst.CSTNode, fits: Callable[[cst.CSTNode], bool]) -> list[cst.CSTNode]:
    visitor = _Matches(fits)
    owner.visit(visitor)
    return visitor.found


def _plain(expression: cst.CSTNode) -> str:
    """What an expression says, whatever its spacing, line breaks and quotes."""
    return ast.dump(ast.parse(f"({cst.Module([]).code_for_node(expression)}\n)", mode="eval"))


def _names(node: cst.CSTNode) -> set[str]:
    return {each.value for each in _matches(node, lambda n: isinstance(n, cst.Name))}


def _strings(node: cst.CSTNode) -> set[str]:
    found = _matches(node, lambda n: isinstance(n, cst.SimpleString))
    return {each.evaluated_value for each in found}


def _called(node: cst.CSTNode) -> set[str]:
    calls = _matches(node, lambda n: isinstance(n, cst.Call))
    last = (each.func.attr if isinstance(each.func, cst.Attribute) else each.func for each in calls)
    return {each.value for each in last if isinstance(each, cst.Name)}


def _defined(node: cst.CSTNode) -> str:
    return node.name.value if isinstance(node, cst.FunctionDef | cst.ClassDef) else ""


def _returned(node: cst.CSTNode) -> set[str]:
    return _names(node) if any(isinstance(n, cst.Return) for n in _small(node)) else set()


def _small(node: cst.CSTNode) -> Sequence[cst.CSTNode]:
    return node.body if isinstance(node, cst.SimpleStatementLine) else ()


def _assigned(node: cst.CSTNode) -> set[str]:
    names: set[str] = set()
    for statement in _small(node):
        if isinstance(statement, cst.Assign):
            for target in statement.targets:
                names |= _last_names(target.target)
        elif isinstance(statement, cst.AnnAssign | cst.AugAssign):
            names |= _last_names(statement.target)
    return names


def _last_names(target: cst.BaseExpression) -> set[str]:
    if isinstance(target, cst.Attribute):
        return {target.attr.value}
    if isinstance(target, cst.Tuple | cst.List):
        return {name for each in target.elements for name in _last_names(each.value)}
    return {target.value} if isinstance(target, cst.Name) else set()
