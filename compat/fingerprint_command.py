"""`python -m miles_periodic.compat.fingerprints show|write|check`: known shapes as data."""

from __future__ import annotations

from typing import Annotated

import typer

from miles_periodic.compat import fingerprints
from miles_periodic.compat.catalog import targets_of
from miles_periodic.compat.plan import trees_from
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.errors import USAGE_STATUS, PeriodicError

app = typer.Typer(
    help="Record and check the shapes of the upstream targets that bindings depend on.",
    no_args_is_help=True,
    add_completion=False,
)

TreeOption = Annotated[
    list[str],
    typer.Option(
        "--tree",
        metavar="UPSTREAM=DIR",
        help="An unpacked wheel or checkout; the package folder or the one that holds it. "
        "May be given once per upstream. Nothing in it is imported.",
    ),
]


def _trees(options: list[str]) -> list[Tree]:
    """The trees that were named; only these, whatever is installed. Exits with 2 on bad input."""
    names = {option.partition("=")[0] for option in options}
    try:
        return [tree for upstream, tree in trees_from(options).items() if upstream in names]
    except PeriodicError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(USAGE_STATUS) from error


@app.command()
def show(tree: TreeOption) -> None:
    """Print signature and content of every target that a binding depends on."""
    for source in _trees(tree):
        for target in targets_of(source.upstream):
            shape = fingerprints.of_target(source, target)
            seen = f"{shape.content}  {shape.signature}" if shape else "is not there"
            typer.echo(f"{target}\n  {seen}")


@app.command()
def write(
    tree: TreeOption,
    label: Annotated[
        str, typer.Option(help="What the tree is, such as miles-rl-0.0.2; it names the file.")
    ],
) -> None:
    """Record the shapes of a tree as known, after reading that the adapters fit them."""
    for source in _trees(tree):
        targets = targets_of(source.upstream)
        if targets:
            typer.echo(f"wrote {fingerprints.record(source, label, targets)}")
        else:
            typer.echo(f"no binding has a target in {source.upstream}; nothing to write")


@app.command()
def check(tree: TreeOption) -> None:
    """Compare a tree with the known shapes; exit with 1 where one is missing or unknown."""
    bad = 0
    for source in _trees(tree):
        for target in targets_of(source.upstream):
            verdict = _verdict(source, target)
            bad += not verdict.startswith("known")
            typer.echo(f"{target}: {verdict}")
    raise typer.Exit(1 if bad else 0)


def _verdict(tree: Tree, target: str) -> str:
    shape = fingerprints.of_target(tree, target)
    if shape is None:
        return "missing"
    known = fingerprints.known_shapes().get(target, ())
    labels = [k.label for k in known if k.fingerprint == shape]
    if labels:
        return f"known from {', '.join(labels)}"
    same = [k.label for k in known if k.fingerprint.signature == shape.signature]
    if same:
        return f"unknown body, signature of {', '.join(same)}"
    return f"unknown signature {shape.signature}"
