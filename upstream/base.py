"""The commit of a user's git checkout that is built upon, in a work tree of our own.

Nothing here touches the user's branch, index or files, and nothing is ever pushed. Hooks of the
checkout do not run: they are made for its own work tree. What is made in the checkout is made and
taken away whole, also where a signal ends the command meanwhile.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.git_environment import of_no_repository

_QUIET = ("-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false")
#: The signals that end a command, and that it can survive.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ENVIRONMENT = {"GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1", "LC_ALL": "C"}


class GitError(PeriodicError):
    """git refused."""


def git(folder: Path, *words: str) -> str:
    """What `git WORDS` says in a folder; GitError holds what it complained of."""
    environment = of_no_repository(os.environ) | _ENVIRONMENT
    done = subprocess.run(
        ["git", "-C", str(folder), *_QUIET, *words],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env=environment,
        check=False,
    )
    # Not read as text by subprocess: that would change the line ends of a file that is shown.
    said = done.stdout.decode(errors="surrogateescape")
    if done.returncode:
        raise GitError(
            f"git {words[0]} failed in {folder}.",
            found=done.stderr.decode(errors="replace").strip() or said.strip(),
            remedy="Repair what git names, and run the command again.",
        )
    return said


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals wait until what is inside has ended; git commands inside do not get them either."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(frozen=True, slots=True)
class Base:
    """The commit that a change starts from, and the git repository that it is in."""

    folder: Path
    commit: str

    @classmethod
    def at(cls, folder: Path, ref: str) -> Base:
        """That commit of the repository that `folder` is in; PeriodicError where there is none."""
        try:
            top = Path(git(folder, "rev-parse", "--show-toplevel").strip())
        except (GitError, OSError) as error:
            raise PeriodicError(
                f"{folder} is no git checkout.",
                tree=str(folder),
                remedy="Give --checkout the folder of a git clone of the upstream.",
            ) from error
        try:
            commit = git(top, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}").strip()
        except GitError as error:
            raise PeriodicError(
                f"{top} has no commit {ref!r}.",
                tree=str(top),
                remedy="Fetch it, or name another with --base.",
            ) from error
        return cls(top, commit)

    def text(self, path: str) -> str | None:
        """A file of it, or None where it has none."""
        if not git(self.folder, "ls-tree", "--name-only", "--full-tree", self.commit, "--", path):
            return None
        return git(self.folder, "show", f"{self.commit}:{path}")

    def check_can_commit(self, branch: str) -> None:
        """PeriodicError where the branch is there, or nobody is named to sign a commit off."""
        self._check_name(branch)
        words = ("for-each-ref", "--format=%(refname:lstrip=2)", f"refs/heads/{branch}")
        if there := git(self.folder, *words).splitlines():
            raise PeriodicError(
                f"{self.folder} has a branch {there[0]} already.",
                tree=str(self.folder),
                remedy=f"Give another name with --branch, or run: git branch -D {there[0]}.",
            )
        try:
            git(self.folder, "var", "GIT_AUTHOR_IDENT")
            git(self.folder, "config", "user.email")
        except GitError as error:
            raise PeriodicError(
                "A commit is signed off by a person, and git knows nobody here.",
                tree=str(self.folder),
                remedy="Run: git config user.name NAME; git config user.email ADDRESS.",
            ) from error

    def _check_name(self, branch: str) -> None:
        try:
            named = git(self.folder, "check-ref-format", "--branch", branch).strip()
        except GitError:
            named = ""
        if named != branch:  # @{-1} is a name that stands for another
            raise PeriodicError(
                f"{branch!r} is no name that git takes for a branch.",
                tree=str(self.folder),
                remedy="Give another name with --branch.",
            )

    @contextmanager
    def work_tree(self) -> Iterator[Path]:
        """Its files in a folder of their own, on no branch; the folder is gone afterwards."""
        outer: Path | None = None
        try:
            with _undisturbed():
                outer = Path(tempfile.mkdtemp(prefix="miles-prepare-"))
                folder = outer / self.folder.name
                words = ("worktree", "add", "--quiet", "--detach", str(folder), self.commit)
                git(self.folder, *words)
            yield folder
        finally:
            with _undisturbed():
                if outer is not None:
                    self._take_away(outer)

    def _take_away(self, outer: Path) -> None:
        folder = outer / self.folder.name
        if (folder / ".git").exists():
            git(self.folder, "worktree", "remove", "--force", str(folder))
        shutil.rmtree(outer)

    def keep(self, branch: str, commit: str, description: str) -> None:
        """Name the commit by a new branch, with the pull request's text as its description."""
        with _undisturbed():
            git(self.folder, "branch", "--no-track", branch, commit)
            try:
                git(self.folder, "config", f"branch.{branch}.description", description)
            except GitError:
                git(self.folder, "update-ref", "-d", f"refs/heads/{branch}")
                raise


def commit(folder: Path, changed: Mapping[str, str] | Sequence[str], message: str) -> str:
    """Commit those paths of a work tree, signed off; its id."""
    git(folder, "add", "--force", "--", *changed)
    git(folder, "commit", "--quiet", "--signoff", "--message", message)
    return git(folder, "rev-parse", "HEAD").strip()
