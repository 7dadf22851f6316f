"""Edits of a source file by its structure: each takes a LibCST module and returns another.

A target is a dotted name at the module's top level, such as `Class.method`, looked for through
`if`, `try` and `with`; where it is defined more than once, the last one counts, as at run time.
An edit finds what it asks for exactly once or raises EditError; nothing else of the text changes.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import libcst as cst

from miles_periodic.hooks.errors import PeriodicError

Definition = cst.FunctionDef | cst.ClassDef
Statement = cst.BaseStatement | cst.BaseSmallStatement
_Node = TypeVar("_Node", bound=cst.CSTNode)
_MODULE = "the module"


class EditError(PeriodicError):
    """The file has not the structure that an edit asks for."""


def parsed(source: bytes | str, name: str = "the file") -> cst.Module:
    """A file's text as a LibCST module; `name` is for the error where it is no Python."""
    try:
        return cst.parse_module(source)
    except (cst.ParserSyntaxError, UnicodeDecodeError, LookupError) as error:
        raise EditError(
            f"{name} is not Python that LibCST can read: {error}.",
            target=name,
            expected="a source file without syntax errors",
            found=str(error).partition("\n")[0],
            remedy="Repair the file.",
        ) from error


def find(module: cst.Module, target: str) -> Definition:
    """The definition of a target; EditError where there is none."""
    scope: cst.Module | Definition = module
    for part in target.split("."):
        found = [node for node in _defined_in(scope) if node.name.value == part]
        if not found:
            raise _missing(target, f"a definition of {part}", "no such definition")
        scope = found[-1]
    return scope


def append(module: cst.Module, code: str) -> cst.Module:
    """Statements and comments at the end of the module, behind its last comment.

    `code` begins with the line break that ends an unfinished last line, where there is one.
    """
    text = module.code + code.replace("\n", module.default_newline)
    return parsed(text.encode(module.encoding))


def add_import(module: cst.Module, statement: str) -> cst.Module:
    """An import statement behind the module's last one at the top; nothing where it is there."""
    (wanted,) = _statements(statement, module)
    at = 0
    for position, node in enumerate(module.body):
        if _same(node, wanted):
            return module
        is_head = isinstance(node, cst.SimpleStatementLine) and _is_head(node.body[0])
        at = position + 1 if is_head and position == at else at
    return module.with_changes(body=[*module.body[:at], wanted, *module.body[at:]])


def insert_after(module: cst.Module, target: str, code: str) -> cst.Module:
    """Definitions or statements right behind a function, class or method, as deep as it is."""
    node = find(module, target)
    blank = _blank_lines(module, node)
    added = [_with_blank_lines(each, blank) for each in _statements(code, module)]
    return _flattened(module, node, [node, *added])


def insert_before(module: cst.Module, target: str, code: str) -> cst.Module:
    """Definitions or statements right before a function, class or method, as deep as it is."""
    node = find(module, target)
    blank = _blank_lines(module, node)
    first, *others = (_with_blank_lines(each, blank) for each in _statements(code, module))
    above = [line for line in node.leading_lines if line.comment is None]
    first = first.with_changes(leading_lines=[*above, *first.leading_lines[len(blank) :]])
    below = node.with_changes(
        leading_lines=[*blank, *(line for line in node.leading_lines if line.comment)]
    )
    return _flattened(module, node, [first, *others, below])


def add_decorator(module: cst.Module, target: str, expression: str) -> cst.Module:
    """A decorator above all others of a function, class or method."""
    node = find(module, target)
    decorator = cst.Decorator(cst.parse_expression(expression))
    return _replaced(module, node, node.with_changes(decorators=[decorator, *node.decorators]))


def add_parameter(module: cst.Module, target: str, parameter: str) -> cst.Module:
    """A parameter with a default, such as `limit: int = 0`, last of those that have a name.

    Behind a `*` it is the last keyword-only one.
    """
    node = find(module, target)
    (wanted,) = _parameters(f"*, {parameter}").kwonly_params
    names = {each.name.value for each in _named(node.params)}
    if wanted.name.value in names:
        raise _missing(target, f"no parameter {wanted.name.value}", "one of that name")
    keyword_only = isinstance(node.params.star_arg, cst.Param | cst.ParamStar)
    field = "kwonly_params" if keyword_only else "params"
    params = node.params.with_changes(**{field: [*getattr(node.params, field), wanted]})
    return _replaced(module, node, node.with_changes(params=params))


def add_argument(module: cst.Module, target: str, callee: str, argument: str) -> cst.Module:
    """A keyword argument, such as `limit=limit`, to the one call of `callee` in a target."""
    wanted = cst.parse_expression(f"f({argument})").args[0]
    calls = [
        node
        for node in _inside(find(module, target), cst.Call)
        if _code(node.func) == callee.strip()
    ]
    call = _only(calls, target, f"one call of {callee}")
    if any(arg.keyword and _code(arg.keyword) == _code(wanted.keyword) for arg in call.args):
        raise _missing(target, f"{callee} without {_code(wanted.keyword)}", "it has one already")
    return _replaced(module, call, call.with_changes(args=_with_last(call.args, wanted)))


def replace_statement(module: cst.Module, target: str, old: str, new: str) -> cst.Module:
    """One statement of a target, compared by its syntax, exchanged for others."""
    node = _statement(module, target, old)
    first, *others = _statements(new, module)
    first = first.with_changes(leading_lines=[*node.leading_lines, *first.leading_lines])
    return _flattened(module, node, [first, *others])


def insert_after_statement(module: cst.Module, target: str, old: str, new: str) -> cst.Module:
    """Statements right behind one statement of a target, compared by its syntax."""
    node = _statement(module, target, old)
    return _flattened(module, node, [node, *_statements(new, module)])


def wrap_statement(module: cst.Module, target: str, old: str, head: str) -> cst.Module:
    """One statement of a target, put into a compound one: `head` is its line, as `if ready:`."""
    node = _statement(module, target, old)
    (outer,) = _statements(f"{head.strip()}\n    pass\n", module)
    outer = outer.with_changes(
        leading_lines=node.leading_lines,
        body=outer.body.with_changes(body=[node.with_changes(leading_lines=[])]),
    )
    return _flattened(module, node, [outer])


def replace_expression(module: cst.Module, target: str, old: str, new: str) -> cst.Module:
    """One expression of a target, compared by its syntax, exchanged for another."""
    wanted = cst.parse_expression(old)
    found = [n for n in _inside(find(module, target), type(wanted)) if _same(n, wanted)]
    node = _only(found, target, f"one expression {old.strip()}")
    return _replaced(module, node, cst.parse_expression(new))


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


def _inside(scope: cst.CSTNode, kind: type[_Node]) -> list[_Node]:
    found: list[_Node] = []

    def look(node: cst.CSTNode) -> None:
        if isinstance(node, kind):
            found.append(node)
        for child in node.children:
            look(child)

    look(scope)
    return found


def _statement(module: cst.Module, target: str, code: str) -> cst.BaseStatement:
    (wanted,) = _statements(code, module)
    found = [n for n in _inside(find(module, target), type(wanted)) if _same(n, wanted)]
    return _only(found, target, f"one statement {code.strip()}")


def _statements(code: str, module: cst.Module) -> list[cst.BaseStatement]:
    """The statements of some code; comments before the first stay with it."""
    text = textwrap.dedent(code).strip("\n") + "\n"
    made = cst.parse_module(text, config=module.config_for_parsing)
    first, *others = made.body
    first = first.with_changes(leading_lines=[*made.header, *first.leading_lines])
    return [first, *others]


def _same(node: cst.CSTNode, wanted: cst.CSTNode) -> bool:
    """Whether two nodes are the same syntax, however they are laid out."""
    return type(node) is type(wanted) and _syntax(node) == _syntax(wanted)


def _syntax(node: cst.CSTNode) -> str:
    text = textwrap.dedent(_code(node)).strip()
    return ast.dump(ast.parse(f"({text})" if isinstance(node, cst.BaseExpression) else text))


def _code(node: cst.CSTNode | None) -> str:
    return cst.Module([]).code_for_node(node) if node is not None else ""


def _only(found: Sequence[_Node], target: str, expected: str) -> _Node:
    if len(found) != 1:
        raise _missing(target, expected, f"{len(found)} of them")
    return found[0]


def _replaced(module: cst.Module, old: cst.CSTNode, new: cst.CSTNode) -> cst.Module:
    return module.visit(_Exchange(old, lambda: new))


def _flattened(module: cst.Module, old: cst.CSTNode, new: Sequence[cst.CSTNode]) -> cst.Module:
    return module.visit(_Exchange(old, lambda: cst.FlattenSentinel(new)))


class _Exchange(cst.CSTTransformer):
    def __init__(self, old: cst.CSTNode, new: Callable[[], cst.CSTNode]) -> None:
        self.old, self.new = old, new

    def on_visit(self, node: cst.CSTNode) -> bool:
        return node is not self.old

    def on_leave(self, original_node, updated_node):
        return self.new() if original_node is self.old else updated_node


def _blank_lines(module: cst.Module, node: Definition) -> list[cst.EmptyLine]:
    top = any(each is node for each in module.body)
    return [cst.EmptyLine(indent=False)] * (2 if top else 1)


def _with_blank_lines(node: cst.BaseStatement, blank: Sequence[cst.EmptyLine]):
    if not isinstance(node, Definition):
        return node
    own = [line for line in node.leading_lines if line.comment]
    return node.with_changes(leading_lines=[*blank, *own])


def _is_head(node: cst.BaseSmallStatement) -> bool:
    docstring = isinstance(node, cst.Expr) and isinstance(
        node.value, cst.SimpleString | cst.ConcatenatedString
    )
    return docstring or isinstance(node, cst.Import | cst.ImportFrom)


def _parameters(code: str) -> cst.Parameters:
    (function,) = cst.parse_module(f"def f({code}): ...\n").body
    return function.params


def _named(params: cst.Parameters) -> list[cst.Param]:
    return [*params.posonly_params, *params.params, *params.kwonly_params]


def _with_last(args: Sequence[cst.Arg], wanted: cst.Arg) -> list[cst.Arg]:
    """The arguments with one more, laid out as the last one was."""
    if not args:
        return [wanted]
    *others, last = args
    written_below = isinstance(last.comma, cst.Comma)
    between = (
        args[-2].comma if len(args) > 1 else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    )
    added = wanted.with_changes(
        comma=last.comma if written_below else cst.MaybeSentinel.DEFAULT,
        whitespace_after_arg=last.whitespace_after_arg,
    )
    if not written_below:
        last = last.with_changes(whitespace_after_arg=cst.SimpleWhitespace(""))
    return [*others, last.with_changes(comma=between), added]


def _missing(target: str, expected: str, found: str) -> EditError:
    return EditError(
        f"{target or _MODULE} has not the structure that an edit asks for.",
        target=target or _MODULE,
        expected=expected,
        found=found,
        remedy="Use a tree whose shape is known, or bring the edit up to this one.",
    )
