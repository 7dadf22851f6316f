"""What becomes of a value where it is read: carried on under a name, consumed, or neither."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from miles_periodic.compat.calls import SAY_ONLY, callee_name, into_call, is_logging, owner_of
from miles_periodic.compat.places import Carried, Consumed, Place, Use
from miles_periodic.compat.scopes import FUNCTIONS, Scopes
from miles_periodic.compat.tree import SourceModule

_SAME_VALUE = {"int", "float", "bool", "list", "tuple", "copy", "deepcopy", "any", "all", "sorted"}
_ARITHMETIC = {"min", "max", "sum", "abs", "len", "round"}
_NOT_READ_BACK = {"__repr__", "__str__", "__reduce__", "__getstate__", "__eq__", "__hash__"}


def uses_of(read: ast.expr, name: str, module: SourceModule, scopes: Scopes) -> list[Use]:
    """Everything that the expression around one read of `name` does with the value.

    A read may be the `kwargs` of `f(**kwargs)`: then the value is handed on as keyword `name`.
    """
    return list(_climb(read, name, module, scopes))


def _climb(node: ast.expr, name: str, module: SourceModule, scopes: Scopes) -> Iterator[Use]:
    """Go from a read outwards until a statement says what becomes of the value."""
    derived = compared = False
    while True:
        parent = module.parents.get(node)
        match parent:
            case ast.BoolOp() | ast.UnaryOp() | ast.Starred() | ast.Await() | ast.Attribute():
                pass
            case ast.Tuple() | ast.List() | ast.Set() | ast.BinOp():
                derived = True
            case ast.GeneratorExp() | ast.ListComp() | ast.SetComp():
                derived = True
            case ast.Compare():
                compared = True
            case ast.IfExp() if node is parent.test:
                if not compared:
                    yield Consumed(parent, "chooses a value by it")
                return
            case ast.IfExp():
                pass
            case ast.Subscript() if node is parent.value:
                derived = True
            case ast.Subscript():
                yield Consumed(parent, f"takes {_brief(parent)}")
                return
            case ast.Slice():
                yield Consumed(parent, f"takes {_brief(module.parents[parent])}")
                return
            case ast.NamedExpr():
                yield _variable(parent.target, parent, module, derived)
            case ast.keyword():
                call = module.parents[parent]
                if isinstance(call, ast.Call):
                    yield from into_call(call, parent, parent.arg or name, module, scopes, derived)
                return
            case ast.Call() if node is parent.func:
                derived = True
            case ast.Call():
                called = parent.func.id if isinstance(parent.func, ast.Name) else ""
                if called in _SAME_VALUE | _ARITHMETIC:
                    derived = derived or called in _ARITHMETIC
                else:
                    position = parent.args.index(node)
                    yield from into_call(parent, node, position, module, scopes, derived)
                    return
            case _:
                yield from _at_statement(node, parent, module, derived, compared)
                return
        node = parent


def _at_statement(
    node: ast.expr,
    parent: ast.AST | None,
    module: SourceModule,
    derived: bool,
    compared: bool,
) -> Iterator[Use]:
    match parent:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _into_target(target, value, parent, module, derived)
        case ast.AnnAssign(target=target, value=value):
            yield from _into_target(target, value, parent, module, derived)
        case ast.AugAssign(target=target):
            yield from _into_target(target, node, parent, module, derived=True)
        case ast.Return() | ast.Yield():
            yield from _returned(parent, module, derived)
        case ast.If(test=test) if node is test:
            if not only_validates(parent.body, by_comparison=compared):
                yield Consumed(parent, f"branches on {_brief(test)}")
        case ast.While(test=test) if node is test:
            yield Consumed(parent, f"loops while {_brief(test)}")
        case ast.Match(subject=subject) if node is subject:
            yield Consumed(parent, f"branches on {_brief(subject)}")
        case ast.For(iter=over, target=ast.Name() as target) if node is over:
            yield _variable(target, parent, module, derived=True)
        case ast.comprehension(iter=over, target=ast.Name() as target) if node is over:
            yield _variable(target, parent.target, module, derived=True)
        case ast.comprehension() if node in parent.ifs:
            yield Consumed(node, f"filters by {_brief(node)}")
        case ast.Dict() if node in parent.keys:
            yield Consumed(node, "takes it as a key")


def _into_target(
    target: ast.expr, value: ast.AST | None, at: ast.AST, module: SourceModule, derived: bool
) -> Iterator[Use]:
    if isinstance(target, ast.Tuple):
        for part in target.elts:
            yield from _into_target(part, value, at, module, True)
    elif isinstance(target, ast.Name):
        yield _variable(target, at, module, derived)
    elif isinstance(target, ast.Attribute):
        place = Place(target.attr, owner_of(target.value, module), derived=derived)
        yield Carried(place, at, f"sets {_brief(target)}")


def _variable(target: ast.Name, at: ast.AST, module: SourceModule, derived: bool) -> Carried:
    scope = module.enclosing(target, *FUNCTIONS) or module.syntax
    place = Place(target.id, None, module, scope, derived)
    return Carried(place, at, f"names it {target.id}")


def _returned(node: ast.AST, module: SourceModule, derived: bool) -> Iterator[Use]:
    function = module.enclosing(node, *FUNCTIONS)
    if not isinstance(function, FUNCTIONS) or function.name in _NOT_READ_BACK:
        return
    if derived:
        yield Consumed(node, "returns what it made of it")
        return
    owner = module.parents.get(function)
    name = owner.name if isinstance(owner, ast.ClassDef) else None
    yield Carried(Place(function.name, name), node, f"returns it from {function.name}")


def only_validates(body: list[ast.stmt], *, by_comparison: bool) -> bool:
    """Whether a branch only refuses, reports or leaves; then its test is no consumption.

    A branch on a comparison that leaves the function is a check of the value; a branch on a bare
    truth value that leaves it (`if not flag: return`) is what the flag is for.
    """
    leaves = (ast.Return, ast.Raise, ast.Continue, ast.Break)
    if by_comparison and isinstance(body[-1], leaves):
        return True
    return all(_reports(statement, by_comparison) for statement in body)


def _reports(statement: ast.stmt, by_comparison: bool) -> bool:
    match statement:
        case ast.Pass() | ast.Raise() | ast.Assert():
            return True
        case ast.Return():
            return by_comparison
        case ast.Expr(value=ast.Call() as call):
            return is_logging(call) or callee_name(call) in SAY_ONLY
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign(value=ast.Constant(value=None | str()) | ast.JoinedStr()):
            return True
        case ast.If(body=body, orelse=orelse):
            return only_validates(body, by_comparison=True) and (
                not orelse or only_validates(orelse, by_comparison=True)
            )
    return False


def _brief(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 60 else text[:57] + "…"
