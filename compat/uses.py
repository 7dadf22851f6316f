"""What becomes of a value where it is read: carried on under a name, consumed, or neither."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from miles_periodic.compat.scopes import FUNCTIONS, Function, Scopes, types_of, words
from miles_periodic.compat.tree import SourceModule, getattr_name


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

_SAME_VALUE = {"int", "float", "bool", "list", "tuple", "copy", "deepcopy", "any", "all", "sorted"}
_ARITHMETIC = {"min", "max", "sum", "abs", "len", "round"}
_SAY_ONLY = {"str", "repr", "format", "print", "isinstance", "hasattr", "type", "id", "callable"}
_LOG_METHODS = {"debug", "info", "warning", "warn", "error", "exception", "critical", "log"}
_INTO_CONTAINER = {"append", "appendleft", "add", "extend", "insert", "setdefault", "update"}
_NOT_READ_BACK = {"__repr__", "__str__", "__reduce__", "__getstate__", "__eq__", "__hash__"}


def uses_of(read: ast.expr, module: SourceModule, scopes: Scopes) -> list[Use]:
    """Everything that the expression around one read does with the value."""
    return list(_climb(read, module, scopes, derived=False))


def _climb(
    node: ast.expr, module: SourceModule, scopes: Scopes, *, derived: bool, compared: bool = False
) -> Iterator[Use]:
    """Go from a read outwards until a statement says what becomes of the value."""
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
                    yield from _into_call(call, parent.arg, module, scopes, derived)
                return
            case ast.Call() if node is parent.func:
                derived = True
            case ast.Call():
                name = callee_name(parent)
                if isinstance(parent.func, ast.Name) and name in _SAME_VALUE | _ARITHMETIC:
                    derived = derived or name in _ARITHMETIC
                else:
                    position = parent.args.index(node)
                    yield from _into_call(parent, position, module, scopes, derived)
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


def _into_call(
    call: ast.Call, argument: str | int | None, module: SourceModule, scopes: Scopes, derived: bool
) -> Iterator[Use]:
    """What a call does with its argument of that keyword or position."""
    name = callee_name(call)
    if name in _SAY_ONLY or _is_logging(call) or argument is None:
        return
    if name == "setattr" and argument == 2 and isinstance(call.args[1], ast.Constant):
        place = Place(str(call.args[1].value), owner_of(call.args[0], module), derived=derived)
        yield Carried(place, call, f"sets {place}")
        return
    if name == "replace" and isinstance(argument, str) and call.args:
        place = Place(argument, owner_of(call.args[0], module), derived=derived)
        yield Carried(place, call, f"replaces {place}")
        return
    if name in _INTO_CONTAINER:
        return
    yield from _into_definition(call, name, argument, module, scopes, derived)


def _into_definition(
    call: ast.Call,
    name: str,
    argument: str | int,
    module: SourceModule,
    scopes: Scopes,
    derived: bool,
) -> Iterator[Use]:
    classes = [scopes.lineage(base) for base in _constructed(call, name, module, scopes)]
    functions = [] if classes else list(scopes.functions(name))
    label = f"{name}({argument}=)" if isinstance(argument, str) else f"{name}(…)"
    for lineage in classes:
        place = _constructor_place(lineage, argument, derived)
        if place is not None:
            yield Carried(place, call, f"gives it to {label}")
    for owner, function in functions:
        place = _parameter_place(owner, function, argument, derived)
        if place is not None:
            yield Carried(place, call, f"passes it to {label}")
    is_class_of_others = name.lstrip("_")[:1].isupper()
    if not classes and not functions and not is_class_of_others:
        yield Consumed(call, f"passes it to {label}")


def _constructed(
    call: ast.Call, name: str, module: SourceModule, scopes: Scopes
) -> list[str]:
    """The classes that a call makes an instance of, `cls(…)` and `super().__init__(…)` included."""
    owner = module.enclosing(call, ast.ClassDef)
    if isinstance(owner, ast.ClassDef) and name == "cls":
        return [owner.name]
    if isinstance(owner, ast.ClassDef) and name == "__init__":
        return [base for node in owner.bases for base in words(node)[-1:]]
    return [name] if any(scopes.classes(name)) else []


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


def _is_logging(call: ast.Call) -> bool:
    if getattr_name(call) is not None:
        return True
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _LOG_METHODS:
        return False
    receiver = words(call.func.value)
    return bool(receiver) and receiver[0].lstrip("_") in {"logger", "logging", "log", "warnings"}


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
            return _is_logging(call) or callee_name(call) in _SAY_ONLY
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
