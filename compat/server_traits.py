"""What the servers of a tree of SGLang refuse and return, read from its sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from miles_periodic.compat.tree import SourceModule, Tree
from miles_periodic.hooks.values import Refusal

#: Where SGLang checks its command line, over the releases.
GUARDS = ("srt/server_args.py", "srt/arg_groups")
_MODE = "disaggregation_mode"
_PREFILL = "srt/disaggregation/prefill.py"
_COLLECT = "maybe_collect_routed_experts"
#: The event loops that the servers of a pair have for themselves.
_LOOPS = {"prefill": _PREFILL, "decode": "srt/disaggregation/decode.py"}
_PAUSED = "_engine_paused"


def prefill_returns_routes(tree: Tree) -> bool:
    """Whether a prefill server answers with the routes of the prompt that it computed."""
    return any(
        isinstance(node, ast.Call) and ast.unparse(node.func).endswith(_COLLECT)
        for module in tree.containing(_COLLECT, _PREFILL)
        for node in ast.walk(module.syntax)
    )


def stands_still(tree: Tree, role: str) -> bool:
    """Whether a server of `role` computes nothing while its generation is paused."""
    file = _LOOPS.get(role)
    return file is None or any(
        isinstance(node, ast.If) and ast.unparse(node.test).endswith(f".{_PAUSED}")
        for module in tree.containing(_PAUSED, file)
        for node in ast.walk(module.syntax)
    )


def refusals_beside(tree: Tree, argument: str) -> tuple[Refusal, ...]:
    """The refusals in `if argument:` branches that raise; a guard of another form gives none.

    Read are tests of one other argument: `x.a`, `x.a == v`, `x.a != v`, `x.a in (…)`,
    `x.a not in (…)`, `x.a is not None`, each alone, or joined by `and` with `argument` itself and
    the role.
    """
    found: dict[Refusal, None] = {}
    for module in tree.containing(argument, *GUARDS):
        for branch in ast.walk(module.syntax):
            if isinstance(branch, ast.If):
                found |= dict.fromkeys(_of_branch(branch, argument, module))
    return tuple(found)


def _of_branch(branch: ast.If, argument: str, module: SourceModule) -> Iterator[Refusal]:
    others = _besides(branch.test, argument)
    if others is None:
        return
    if len(others) == 1 and _raises(branch):
        yield from _read(others[0], branch, module)
    elif not others:
        for inner in branch.body:
            if isinstance(inner, ast.If) and _raises(inner):
                yield from _read(inner.test, inner, module)


def _besides(test: ast.expr, argument: str) -> list[ast.expr] | None:
    """The other parts of a conjunction that holds `argument`; None where it does not hold it."""
    conjunction = isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And)
    parts = test.values if isinstance(test, ast.BoolOp) and conjunction else [test]
    if argument not in [_argument(part) for part in parts]:
        return None
    return [p for p in parts if _argument(p) != argument and _MODE not in ast.unparse(p)]


def _argument(node: ast.expr) -> str:
    """The name of `x.name`, or of the call `x().name`; empty for anything else."""
    return node.attr if isinstance(node, ast.Attribute) else ""


def _raises(branch: ast.If) -> bool:
    return any(isinstance(statement, ast.Raise) for statement in branch.body)


def _read(test: ast.expr, branch: ast.If, module: SourceModule) -> Iterator[Refusal]:
    where = f"{module.tree.relative(module.path)}:{branch.lineno}"
    if name := _argument(test):
        yield Refusal(name, refused=(True,), where=where)
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and _argument(test.left)):
        return
    name, operator = _argument(test.left), test.ops[0]
    values = _constants(test.comparators[0])
    if values is None:
        return
    if isinstance(operator, ast.Eq | ast.In | ast.Is):
        yield Refusal(name, refused=values, where=where)
    elif isinstance(operator, ast.NotEq | ast.NotIn | ast.IsNot):
        yield Refusal(name, allowed=values, where=where)


def _constants(node: ast.expr) -> tuple | None:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return tuple(value) if isinstance(value, tuple | list | set) else (value,)
