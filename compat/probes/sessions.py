"""How a tree's session server asks for routes: what stands in the plan beside its bindings."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from miles_periodic.compat.probes.sightings import key_writes, mentions
from miles_periodic.compat.tree import SourceModule, Tree
from miles_periodic.hooks.decisions import Evidence

_FOLDER = "rollout/session"


def sightings(tree: Tree) -> tuple[Evidence, ...]:
    """Where the session server asks for routes, and what decides whether for new ones only."""
    return (*_asks(tree), *_decides(tree))


def _asks(tree: Tree) -> Iterator[Evidence]:
    for module in tree.containing("return_routed_experts", _FOLDER):
        for write in key_writes(module.syntax, "return_routed_experts"):
            name = _place(module, write)
            yield module.evidence(write, f"{name} asks chat requests for routed experts")


def _decides(tree: Tree) -> Iterator[Evidence]:
    """Comparisons with the pause mode: Miles main asks for new rows in one mode only."""
    for module in tree.containing("in_place", _FOLDER):
        for node in ast.walk(module.syntax):
            if isinstance(node, ast.Compare) and mentions(node, "in_place"):
                what = f"{_place(module, node)} asks for new rows only if {ast.unparse(node)}"
                yield module.evidence(node, what)


def _place(module: SourceModule, node: ast.AST) -> str:
    return module.qualname(node) or module.path.stem
