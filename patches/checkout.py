"""What `--checkout DIR` is: a git checkout, or any other folder that holds a package."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.git_environment import of_no_repository
from miles_periodic.patches.codemod import without_points

GIT_TIMEOUT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Checkout:
    """A folder to patch: `root` is git's top level where `is_git`, else the folder itself."""

    root: Path
    is_git: bool

    def changed(self, files: Iterable[str]) -> tuple[str, ...]:
        """Those of the tracked files that differ from HEAD by more than our binding points."""
        files = tuple(files)
        if not self.is_git or not files:
            return ()
        printed = self._git("status", "--porcelain", "-z", "--no-renames", "--", *files)
        entries = [entry for entry in printed.decode(errors="replace").split("\0") if entry]
        listed = [entry[3:] for entry in entries if entry[:2] not in ("??", "!!")]
        return tuple(file for file in listed if not self._only_patched(file))

    def author(self) -> str:
        """Whom git names in a commit here, as `Name <address>`; empty where it knows nobody."""
        if not self.is_git:
            return ""
        try:
            words = self._git("var", "GIT_AUTHOR_IDENT").decode().split(" ")
        except PeriodicError:
            return ""
        return " ".join(words[:-2])  # without the time and its zone

    def _only_patched(self, file: str) -> bool:
        path = self.root / file
        if not path.is_file():
            return False
        committed = self._git("cat-file", "--filters", f"HEAD:{file}")
        return without_points(path.read_bytes(), file) == without_points(committed, file)

    def _git(self, *words: str) -> bytes:
        return git(self.root, *words)


def checkout_at(folder: Path) -> Checkout:
    """The checkout in a folder; PeriodicError where there is no such folder."""
    folder = Path(os.path.expanduser(folder))
    if not folder.is_dir():
        raise PeriodicError(
            f"{folder} is no folder.",
            tree=str(folder),
            remedy="Give --checkout the folder that holds the package, or the package itself.",
        )
    folder = folder.resolve()
    if shutil.which("git") is None:
        return Checkout(folder, False)
    words = ["git", "-C", str(folder), "rev-parse", "--show-toplevel"]
    found = subprocess.run(
        words,
        capture_output=True,
        timeout=GIT_TIMEOUT_SECONDS,
        env=of_no_repository(os.environ),
        check=False,
    )
    if found.returncode:
        return Checkout(folder, False)
    top = Path(os.fsdecode(found.stdout.rstrip(b"\n"))).resolve()
    tracks = bool(git(folder, "ls-files", "-z", "--", ".").strip(b"\0"))
    return Checkout(top, True) if tracks else Checkout(folder, False)


def git(folder: Path, *words: str, environment: dict[str, str] | None = None) -> bytes:
    """What git prints; PeriodicError with what it says where it fails."""
    command = ["git", "-C", str(folder), *words]
    variables = {**of_no_repository(os.environ), "LC_ALL": "C", **(environment or {})}
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=GIT_TIMEOUT_SECONDS, env=variables, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _failed(folder, words, str(error)) from error
    if done.returncode:
        raise _failed(folder, words, done.stderr.decode(errors="replace").strip())
    return done.stdout


def _failed(folder: Path, words: tuple[str, ...], said: str) -> PeriodicError:
    return PeriodicError(
        f"git {words[0]} failed in {folder}.",
        tree=str(folder),
        expected="a git that works there",
        found=said.partition("\n")[0],
        remedy=f"Run it by hand and repair what it says: git -C {folder} {' '.join(words[:2])}",
    )
