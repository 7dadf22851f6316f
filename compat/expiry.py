"""What turns itself off: bindings that a tree no longer needs, by the ledger's own proof."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from miles_periodic.compat.catalog import ALWAYS, every_name
from miles_periodic.compat.conditions import judge
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.conditions import Replacement
from miles_periodic.hooks.decisions import Decision, Evidence, Inject, Native


@dataclass(frozen=True, slots=True)
class Replaced:
    """A change that a tree has: its key, what shows it, and the bindings that it makes needless."""

    key: str
    evidence: tuple[Evidence, ...]
    bindings: tuple[str, ...]


def replaced(
    names: Iterable[str], replacements: Sequence[Replacement], tree: Tree
) -> tuple[Replaced, ...]:
    """The changes in `tree` that make some of those bindings needless."""
    wanted = tuple(names)
    found = []
    for change in replacements:
        needless = tuple(name for name in wanted if name in change.bindings)
        if change.upstream == tree.upstream and needless:
            verdict = judge(change.condition, tree)
            if verdict.holds:
                found.append(Replaced(change.key, verdict.evidence, needless))
    return tuple(found)


def remaining(
    names: Iterable[str], replacements: Sequence[Replacement], tree: Tree
) -> tuple[str, ...]:
    """Those of the bindings that the tree still needs."""
    wanted = tuple(names)
    gone = {name for change in replaced(wanted, replacements, tree) for name in change.bindings}
    return tuple(name for name in wanted if name not in gone)


def without_replaced(decision: Inject, replacements: Sequence[Replacement], tree: Tree) -> Decision:
    """`decision` without the bindings that the tree no longer needs; native where none is left."""
    changes = replaced(decision.bindings, replacements, tree)
    if not changes:
        return decision
    gone = {name for change in changes for name in change.bindings}
    said = (
        f"{change.key} is in this tree: without {', '.join(change.bindings)}" for change in changes
    )
    reason = "; ".join((decision.reason, *said))
    evidence = (*decision.evidence, *(e for change in changes for e in change.evidence))
    left = tuple(name for name in decision.bindings if name not in gone)
    if set(left) <= set(every_name(ALWAYS.get(tree.upstream, ()))):
        return Native(reason, evidence)
    return replace(decision, reason=reason, evidence=evidence, bindings=left)
