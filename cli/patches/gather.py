"""The patch sets that a command is asked for, and how they stand in a checkout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from miles_periodic.compat.catalog import BINDINGS
from miles_periodic.compat.patched import Drift, Nothing, Points, points_of
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.decisions import UPSTREAMS
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.selection import check_slugs
from miles_periodic.patches.checkout import Checkout, checkout_at
from miles_periodic.patches.codemod import PointInFile, sources_of
from miles_periodic.patches.headers import Header, headers
from miles_periodic.patches.states import Conflict, NotApplicable, State, state_of
from miles_periodic.plugins import features
from miles_periodic.upstream.rows import replacements

Features = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FEATURE]...", help="Only these features. Default: all of them."),
]
CheckoutFolder = Annotated[
    Path,
    typer.Option(
        "--checkout",
        metavar="DIR",
        help="A git checkout, an unpacked wheel or site-packages: the folder that holds the "
        "package, or the package itself.",
    ),
]
Upstreams = Annotated[
    list[str] | None,
    typer.Option(
        "--upstream",
        metavar="UPSTREAM",
        help="Only this upstream of those in DIR: sglang, megatron or miles. Repeatable.",
    ),
]


@dataclass(frozen=True, slots=True)
class Looked:
    """One patch set in a checkout: its header, its state, and its points where it has some."""

    header: Header
    state: State
    points: tuple[PointInFile, ...] = ()


def chosen(names: Sequence[str]) -> tuple[Header, ...]:
    """The headers of those features, or all; PeriodicError on a feature that has none."""
    check_slugs("miles patches", names, sorted({header.feature for header in headers()}))
    return tuple(each for each in headers() if not names or each.feature in names)


def open_checkout(folder: Path, upstreams: Sequence[str]) -> tuple[Checkout, dict[str, Tree]]:
    """What `--checkout` names, and upstream to its tree in it.

    Raises PeriodicError where none is there, or not one that was asked for.
    """
    for upstream in upstreams:
        if upstream not in UPSTREAMS:
            raise PeriodicError(
                f"No upstream is named {upstream!r}.", remedy=f"Use one of {', '.join(UPSTREAMS)}."
            )
    checkout = checkout_at(folder)
    trees = {u: tree for u in upstreams or UPSTREAMS if (tree := _tree_in(folder, u)) is not None}
    if not trees or any(upstream not in trees for upstream in upstreams):
        raise PeriodicError(
            f"{folder} holds not what is to be patched.",
            tree=str(folder),
            expected=f"the package {' or '.join(upstreams or UPSTREAMS)}",
            found=", ".join(trees) or "none of them",
            remedy="Give --checkout the folder that holds the package, or the package itself.",
        )
    return _around(checkout, trees), trees


def look(wanted: Sequence[Header], checkout: Checkout, trees: dict[str, Tree]) -> Iterator[Looked]:
    """Every patch set that was asked for, as it stands in the checkout."""
    by_slug = {feature.slug: feature for feature in features()}
    for header in wanted:
        tree = trees.get(header.upstream)
        if tree is None:
            continue
        if header.nothing:
            yield Looked(header, NotApplicable(header.nothing))
            continue
        try:
            found = points_of(by_slug[header.feature], tree, replacements())
            yield _looked(header, found, checkout, tree)
        except (PeriodicError, OSError) as error:
            yield Looked(header, _unreadable(error, tree))


def _looked(
    header: Header, found: Points | Nothing | Drift, checkout: Checkout, tree: Tree
) -> Looked:
    if isinstance(found, Nothing):
        return Looked(header, NotApplicable(found.reason))
    if isinstance(found, Drift):
        parts = (found.file, found.target, found.expected, found.found, found.remedy)
        return Looked(header, Conflict(*parts))
    points = tuple(
        PointInFile(
            str(tree.file(module).relative_to(checkout.root)),
            header.feature,
            names,
            tuple(dict.fromkeys(BINDINGS[name].qualname for name in names)),
        )
        for module, names in found.by_module.items()
    )
    state = state_of(points, sources_of(checkout.root, points), found.without)
    return Looked(header, state, points)


def _unreadable(error: PeriodicError | OSError, tree: Tree) -> Conflict:
    """A source that decides and cannot be read stands against one patch set, not all."""
    parts = error.parts if isinstance(error, PeriodicError) else {}
    found = error.problem if isinstance(error, PeriodicError) else str(error)
    target = parts.get("target") or tree.name
    remedy = parts.get("remedy") or "Repair the tree."
    return Conflict(target.partition(":")[0], target, "sources that can be read", found, remedy)


def refuse_conflicts(looked: Sequence[Looked], checkout: Checkout) -> None:
    """Raise PeriodicError for the first patch set that is in conflict; the message names all."""
    conflicts = [each for each in looked if isinstance(each.state, Conflict)]
    if not conflicts:
        return
    first, *others = conflicts
    also = f", nor {', '.join(each.header.name for each in others)}" if others else ""
    raise PeriodicError(
        f"{first.header.name} does not apply, for {first.state.file} is in conflict{also}; nothing "
        "was written.",
        feature=first.header.feature,
        tree=str(checkout.root),
        target=first.state.target,
        expected=first.state.expected,
        found=first.state.found,
        remedy=first.state.remedy,
    )


def refuse_idle(names: Sequence[str], looked: Sequence[Looked], checkout: Checkout) -> None:
    """Raise PeriodicError where a feature was named and has nothing to patch in the checkout."""
    for name in names:
        mine = [each for each in looked if each.header.feature == name]
        if all(isinstance(each.state, NotApplicable) for each in mine):
            reasons = [f"{e.header.upstream}: {e.state.reason}" for e in mine]
            raise PeriodicError(
                f"{name} patches nothing in {checkout.root}.",
                feature=name,
                tree=str(checkout.root),
                found="; ".join(reasons) or "none of its upstreams",
                remedy="Leave it out, or give a checkout to which its patch set applies: "
                "miles patches list.",
            )


def _tree_in(folder: Path, upstream: str) -> Tree | None:
    """The package's own folder; another one with Python files in it is none."""
    try:
        tree = Tree.at(upstream, folder)
    except PeriodicError:
        return None
    return tree if tree.portions[0].name == upstream else None


def _around(checkout: Checkout, trees: dict[str, Tree]) -> Checkout:
    """The checkout with a root that holds the packages, also where it was a package itself."""
    portions = [tree.portions[0] for tree in trees.values()]
    root = checkout.root
    if root in portions:
        return Checkout(root.parent, False)
    outside = [portion for portion in portions if not portion.is_relative_to(root)]
    if outside:
        raise PeriodicError(
            f"{outside[0].name} is a link that leads out of {root}.",
            tree=str(outside[0]),
            remedy=f"Give --checkout {outside[0].parent}.",
        )
    return checkout
