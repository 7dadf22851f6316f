"""Patch sets as files for people who build images: `git format-patch` and a quilt series.

They are made by git itself in a repository of its own that holds the touched files alone: the same
paths and blobs, so that `git am --3way` finds its way in the checkout, too.
"""

from __future__ import annotations

import os
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.patches.checkout import git
from miles_periodic.patches.headers import Header

AUTHOR = "miles-periodic <miles-periodic@localhost>"
#: A person's hooks, prefixes and cover letters would make files that git am or patch -p1 refuse.
_UNCONFIGURED = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


@dataclass(frozen=True, slots=True)
class Exported:
    """One patch set to write: its header, the files that it changes, and its DEP-3 fields.

    after: file, relative to the root, to its bytes with this patch set and those before it.
    fields: DEP-3 field to its value, without Description, Author and Last-Update.
    """

    header: Header
    after: Mapping[str, bytes]
    fields: Mapping[str, str]


def export(
    into: Path,
    before: Mapping[str, bytes],
    patch_sets: Sequence[Exported],
    *,
    author: str = "",
    day: str,
) -> tuple[Path, ...]:
    """Write `git/*.patch` and `quilt/series` with its patches into a new folder.

    before: file to its bytes without any of them. day: the ISO date of Last-Update.
    Returns the files that were written; raises PeriodicError where the folder is there already.
    """
    if into.exists():
        raise PeriodicError(
            f"{into} is there already.",
            target=str(into),
            remedy="Give --output a folder that does not exist yet.",
        )
    into = into.absolute()  # git runs in another folder
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into.parent, prefix=f".{into.name}.") as held:
        beside = Path(held)
        repository, made = beside / "repository", beside / "made"
        _commit_all(repository, before, patch_sets, author or AUTHOR)
        (made / "git").mkdir(parents=True)
        words = ("format-patch", "--quiet", "--output-directory", str(made / "git"), "base")
        git(repository, *words, environment=_UNCONFIGURED)
        _quilt(repository, made / "quilt", patch_sets, author or AUTHOR, day)
        made.rename(into)
    return tuple(sorted(path for path in into.rglob("*") if path.is_file()))


def _commit_all(
    repository: Path, before: Mapping[str, bytes], patch_sets: Sequence[Exported], author: str
) -> None:
    repository.mkdir()
    git(repository, "init", "--quiet", "--template=", environment=_UNCONFIGURED)
    name, _, address = author.rstrip(">").rpartition(" <")
    who = {
        f"GIT_{role}_{part}": value
        for role in ("AUTHOR", "COMMITTER")
        for part, value in (("NAME", name), ("EMAIL", address))
    }
    who |= _UNCONFIGURED
    _commit(repository, before, "Base", who)
    git(repository, "tag", "base")
    for number, each in enumerate(patch_sets, start=1):
        _commit(repository, each.after, _message(each.header), who)
        git(repository, "tag", f"set-{number}")


def _commit(repository: Path, files: Mapping[str, bytes], message: str, who: dict) -> None:
    for file, data in files.items():
        path = repository / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    git(repository, "-c", "core.autocrlf=false", "add", "--all", "--force", environment=who)
    words = ("-c", "core.autocrlf=false", "-c", "commit.gpgsign=false", "commit", "--quiet")
    git(repository, *words, "--no-verify", "--message", message, environment=who)


def _message(header: Header) -> str:
    paragraphs = [
        f"miles-periodic: {header.feature}",
        header.what,
        header.why,
        f"Without miles-periodic's launcher it does nothing. Exit: {header.exit}",
    ]
    return "\n\n".join(textwrap.fill(text, 72, break_on_hyphens=False) for text in paragraphs)


def _quilt(
    repository: Path, into: Path, patch_sets: Sequence[Exported], author: str, day: str
) -> None:
    into.mkdir()
    names = []
    previous = "base"
    for number, each in enumerate(patch_sets, start=1):
        name = f"{number:04d}-{each.header.upstream}-{each.header.feature}.patch"
        words = ("diff", "--no-color", "--no-ext-diff", "--binary", previous, f"set-{number}")
        diff = git(repository, *words, environment=_UNCONFIGURED)
        (into / name).write_bytes(_dep3(each, author, day).encode() + diff)
        names.append(name)
        previous = f"set-{number}"
    (into / "series").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")


def _dep3(each: Exported, author: str, day: str) -> str:
    """The header of a quilt patch, with the fields that DEP-3 names."""
    long = textwrap.fill(f"{each.header.what} {each.header.why}", 78, break_on_hyphens=False)
    description = f"{each.header.feature}\n" + textwrap.indent(long, " ")
    fields = {
        "Description": description,
        "Author": author,
        **each.fields,
        "Last-Update": day,
    }
    return "".join(f"{name}: {value}\n" for name, value in fields.items() if value) + "---\n\n"
