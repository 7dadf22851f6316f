"""What becomes of a value where it is read: carried on under a name, consumed, or neither."""

from __future__ import annotations

import ast
import re
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
_MAKES_AN_OBJECT = re.compile(r"^_*[A-Z]|(_|^)(type|cls|class|factory)$")
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
                    yield from _into_call(call, parent, parent.arg or name, module, scopes, derived)
                return
            case ast.Call() if node is parent.func:
                derived = True
            case ast.Call():
                called = parent.func.id if isinstance(parent.func, ast.Name) else ""
                if called in _SAME_VALUE | _ARITHMETIC:
                    derived = derived or called in _ARITHMETIC
                else:
                    position = parent.args.index(node)
                    yield from _into_call(parent, node, position, module, scopes, derived)
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
    call: ast.Call,
    at: ast.keyword | ast.expr,
    argument: str | int,
    module: SourceModule,
    scopes: Scopes,
    derived: bool,
) -> Iterator[Use]:
    """What a call does with the value that it gets at `at` as that keyword or position."""
    name = callee_name(call)
    if name in _SAY_ONLY | _INTO_CONTAINER or _is_logging(call):
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
    """Into the constructor or function that is called; consumed where the folders define neither."""
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
