"""`miles patches apply` and `revert`: all that was asked for, or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer

from miles_periodic.cli import messages
from miles_periodic.cli.patches.gather import (
    CheckoutFolder,
    Features,
    Looked,
    Upstreams,
    chosen,
    look,
    open_checkout,
    refuse_conflicts,
    refuse_idle,
)
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.binding_points import marked_in
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.patches.checkout import Checkout
from miles_periodic.patches.codemod import put_in, sources_of, without_point
from miles_periodic.patches.rewriting import Rewrite, alone_in, rewrite
from miles_periodic.patches.states import Applied, NotApplicable, Ready, state_of


def apply_command(
    checkout: CheckoutFolder, names: Features = None, upstream: Upstreams = None
) -> None:
    """Put patch sets into a checkout: all that apply there, or only those of some features.

    Nothing is written where one of them is in conflict, or where git says that a file which would
    be touched was changed. A killed command leaves a folder .miles-periodic-patches, and the next
    one puts everything back first. In a patched tree, miles --plugins periodic works as ever.
    """
    place, trees = open_checkout(checkout, upstream or ())
    with _alone(place):
        looked = list(look(chosen(names or ()), place, trees))
        refuse_idle(names or (), looked, place)
        refuse_conflicts(looked, place)
        ready = [each for each in looked if isinstance(each.state, Ready)]
        _apply(ready, place)
    for each in looked:
        if isinstance(each.state, Applied):
            messages.say("applied before", each.header.name, "dim")
        elif isinstance(each.state, NotApplicable):
            messages.say("not applicable", f"{each.header.name}: {each.state.reason}", "dim")
    for each in ready:
        messages.say("applied", f"{each.header.name} in {len(each.state.files)} files", "green")
        for target in each.state.without:
            messages.warning(f"{each.header.name} goes without {target}: no known shape of it.")
    typer.echo(f"{len(ready)} patch sets were applied in {place.root}")


def revert_command(
    checkout: CheckoutFolder, names: Features = None, upstream: Upstreams = None
) -> None:
    """Take patch sets out of a checkout again: every file gets back the bytes that it had.

    Whatever else was changed in a file stays. Nothing is written where a binding point was changed.
    """
    place, trees = open_checkout(checkout, upstream or ())
    slugs = [header.feature for header in chosen(names or ())]
    with _alone(place):
        found = {file: marks for file, marks in _marked(place, trees.values(), slugs)}
        rewrites = [_without(place.root, file, marks) for file, marks in found.items()]
        rewrite(place.root, rewrites)
    gone = sorted({slug for marks in found.values() for slug in marks})
    if missing := [name for name in names or () if name not in gone]:
        messages.warning(f"{', '.join(missing)} was not applied in {place.root}.")
    for slug in gone:
        messages.say("reverted", slug, "green")
    typer.echo(f"{len(found)} files of {place.root} are as they were")


@contextmanager
def _alone(place: Checkout) -> Iterator[None]:
    with alone_in(place.root) as num_put_back:
        if num_put_back:
            messages.say("put back", f"{num_put_back} files of an interrupted command", "yellow")
        yield


def _apply(ready: Sequence[Looked], place: Checkout) -> None:
    points = [point for each in ready for point in each.points]
    before = sources_of(place.root, points)
    _refuse_changed(place, before)
    after = put_in(points, before)
    rewrite(place.root, [Rewrite(file, before[file], text) for file, text in after.items()])
    now = sources_of(place.root, points)
    for each in ready:
        if not isinstance(state_of(each.points, now), Applied):
            raise PeriodicError(
                f"{each.header.name} was written and does not read as applied.",
                tree=str(place.root),
                remedy="Run: miles patches revert --checkout DIR; nobody else may write there.",
            )


def _refuse_changed(place: Checkout, files: Iterable[str]) -> None:
    changed = place.changed(files)
    if changed:
        raise PeriodicError(
            f"{place.root} has changes in files that would be patched, and nothing was written.",
            tree=str(place.root),
            target=", ".join(changed),
            expected="files as they are in HEAD, or with patch sets of ours alone",
            found="changes that are not committed",
            remedy="Commit or stash them.",
        )


def _marked(
    place: Checkout, trees: Iterable[Tree], slugs: Sequence[str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Files with binding points of those features, and of which ones."""
    for tree in trees:
        for source in tree.containing("miles-periodic: "):
            marks = tuple(sorted(marked_in(source.text) & set(slugs)))
            if marks:
                yield str(source.path.relative_to(place.root)), marks


def _without(root: Path, file: str, slugs: Sequence[str]) -> Rewrite:
    before = after = (root / file).read_bytes()
    for slug in slugs:
        after = without_point(after, slug, file)
    return Rewrite(file, before, after)
