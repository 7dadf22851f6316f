"""`miles compat add`: take a release into the matrix, and say what changed for each feature."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from miles_periodic.cli.compat.gather import facts_in, gathered
from miles_periodic.compat.catalog import every_binding
from miles_periodic.compat.matrix import releases
from miles_periodic.compat.matrix.changes import Change, changes
from miles_periodic.compat.matrix.facts import Facts, record, recorded
from miles_periodic.compat.matrix.releases import Release
from miles_periodic.compat.matrix.wheels import unpacked
from miles_periodic.hooks.errors import PeriodicError

_COLOURS = {"gone": "bold red", "new": "cyan", "signature": "red", "body": "yellow"}


def add_command(
    release: Annotated[str, typer.Argument(metavar="DIST==VERSION")],
    lines: Annotated[
        int,
        typer.Option(
            "--lines", metavar="N", min=0, help="So many lines of a target's diff; 0 for all."
        ),
    ] = 40,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what changed, and put nothing on file.")
    ] = False,
) -> None:
    """Take a release into the matrix, and say per feature what changed since the one before it.

    Decisions first, then the targets of our bindings that are gone, or have another signature or
    body, as a diff. Which shapes are known is another matter: they are recorded after a
    feature's real tests passed on the release.
    """
    added = releases.release_named(release)
    before = releases.before(added)
    if before is None:
        raise PeriodicError(
            f"{added.name} is older than every release of the matrix.",
            remedy="Add it to compat/matrix/releases.toml by hand, where the range should begin.",
        )
    (now,) = gathered([added])
    earlier = recorded(before.label) or facts_in(before, unpacked(before))
    console = Console(highlight=False, soft_wrap=True)
    for part in _report(before, added, earlier, now, lines):
        console.print(part)
    if not dry_run:
        is_new = releases.add(added)
        console.print(f"{'Added' if is_new else 'Was there already:'} {added.name}.")
        console.print(f"Wrote {record(now)}. Now run: make docs.")


def _report(
    before: Release, added: Release, earlier: Facts, now: Facts, num_lines: int
) -> Iterator[Text | str]:
    """What changed, feature by feature, on each upstream of the release."""
    was, is_now = before.trees(unpacked(before)), added.trees(unpacked(added))
    for upstream in added.upstreams:
        yield Text(f"{upstream}: {before.label} to {added.label}", "bold")
        for slug, fact in sorted(now.decisions[upstream].items()):
            old = earlier.decisions.get(upstream, {}).get(slug)
            yield _decided(slug, old.decision if old else "not planned", fact.decision)
            if old is None or old.reason != fact.reason:
                yield f"  {fact.reason}"
            for change in changes(every_binding(slug, upstream), was[upstream], is_now[upstream]):
                yield from _shown(change, num_lines)
        yield from _claims(earlier, now)


def _decided(slug: str, was: str, now: str) -> Text:
    same = was == now
    return Text.assemble(
        (f"  {slug}: ", "bold"), now if same else f"{was} → {now}", style="" if same else "yellow"
    )


def _shown(change: Change, num_lines: int) -> Iterator[Text | str]:
    known = "a known shape" if change.known else "an unknown shape"
    what = {"gone": "gone", "new": f"new, {known}"}.get(
        change.what, f"another {change.what}, {known}"
    )
    yield Text.assemble("    ", (f"{change.target}: {what}", _COLOURS[change.what]))
    shown = change.detail if num_lines == 0 else change.detail[:num_lines]
    for line in shown:
        yield Text(
            f"      {line}", "green" if line[:1] == "+" else "red" if line[:1] == "-" else "dim"
        )
    if len(shown) < len(change.detail):
        yield Text(f"      … {len(change.detail) - len(shown)} more lines: --lines 0", "dim")


def _claims(earlier: Facts, now: Facts) -> Iterator[str]:
    for key, holds in now.claims.items():
        if holds != earlier.claims.get(key, holds):
            yield f"  {key} is {'in' if holds else 'no longer in'} this release"
