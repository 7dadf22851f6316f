"""A contribution made into commits on a base, in a work tree that is not the user's."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.upstream.base import Base, commit, git
from miles_periodic.upstream.changed_files import changed_by
from miles_periodic.upstream.contributions import Contribution, NotFound
from miles_periodic.upstream.description import commit_message
from miles_periodic.upstream.style import CONFIGURATION, styled, tools_of

TEST_TIMEOUT_SECONDS = 1800


@dataclass(frozen=True, slots=True)
class Built:
    """Commits that stand on the base, oldest first, and what to say about their style."""

    commits: tuple[str, ...]
    changed: tuple[str, ...]
    style: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tested:
    """What the added tests of a step said: with it, and on the commit before it.

    The words are pytest's last line.
    """

    subject: str
    passed: bool
    with_step: str
    before: str
    failed_before: bool

    @property
    def proves(self) -> bool:
        """Whether the tests pass because of the step."""
        return self.passed and self.failed_before

    def __str__(self) -> str:
        return f"{self.subject}: {self.with_step}; on the commit before: {self.before}"


def package_root(base: Base, upstream: str) -> str | None:
    """What stands before the package's name in the base's paths; None without such a package."""
    inside = "core/__init__.py" if upstream == "megatron" else "__init__.py"
    for root in ("", "python/"):
        if base.text(f"{root}{upstream}/{inside}") is not None:
            return root
    return None


def changes(contribution: Contribution, base: Base) -> list[dict[str, str]]:
    """What each step changes, nothing of it written yet.

    Raises PeriodicError where a target of the base is not as the contribution knows it.
    """
    root = package_root(base, contribution.upstream) or ""

    def there(path: str) -> str:
        return root + path if path.startswith(f"{contribution.upstream}/") else path

    try:
        steps = list(changed_by(contribution, lambda path: base.text(there(path))))
    except NotFound as drift:
        raise PeriodicError(
            f"The base is not what the change for {contribution.upstream} was written for.",
            feature=contribution.feature,
            tree=f"{base.folder} at {base.commit[:12]}",
            target=there(drift.target),
            expected=drift.expected,
            found=drift.found,
            remedy="Give --base a commit that has the target, or take a newer miles-periodic. "
            "Nothing was changed.",
        ) from drift
    return [{there(path): text for path, text in changed.items()} for changed in steps]


def build(
    contribution: Contribution, base: Base, folder: Path, steps: Sequence[dict[str, str]]
) -> Built:
    """Commit each step in that work tree, in the upstream's style."""
    tools = list(tools_of(base.text(CONFIGURATION)))
    style = dict.fromkeys(map(str, tools))
    commits: list[str] = []
    for step, changed in zip(contribution.steps, steps, strict=True):
        before = {path: base.text(path) for path in changed}
        style |= dict.fromkeys(styled(folder, changed, before, tools))
        commits.append(commit(folder, list(changed), commit_message(step.subject, step.body)))
    paths = dict.fromkeys(path for changed in steps for path in changed)
    return Built(tuple(commits), tuple(paths), tuple(style))


def run_tests(
    contribution: Contribution, base: Base, folder: Path, built: Built, python: str
) -> list[Tested]:
    """Run the tests that each step adds, at the step and on the commit before it."""
    packages = folder / (package_root(base, contribution.upstream) or ".")
    before = (base.commit, *built.commits)
    tested: list[Tested] = []
    for step, earlier, at in zip(contribution.steps, before, built.commits, strict=False):
        if step.tests:
            git(folder, "checkout", "--quiet", "--force", "--detach", at)
            passed, with_step = _pytest(python, folder, packages, step.tests)
            git(folder, "checkout", "--quiet", "--detach", earlier)
            git(folder, "checkout", "--quiet", at, "--", *step.tests)
            still, said = _pytest(python, folder, packages, step.tests)
            tested.append(Tested(step.subject, passed, with_step, said, not still))
    return tested


def _pytest(python: str, folder: Path, packages: Path, tests: Sequence[str]) -> tuple[bool, str]:
    """Whether all pass, and pytest's last line."""
    path = os.pathsep.join([str(packages), *filter(None, [os.environ.get("PYTHONPATH")])])
    words = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no", *tests]
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        status, said = _run(words, folder, environment)
    except subprocess.TimeoutExpired:
        return False, f"no end within {TEST_TIMEOUT_SECONDS} s"
    except OSError as error:
        raise PeriodicError(
            f"{python} cannot be run: {error}.", remedy="Give --python a Python with pytest."
        ) from error
    return status == 0, (said or "pytest said nothing").splitlines()[-1].strip("= ")


def _run(words: Sequence[str], folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Status and words of a command; however this ends, no process that it started is left."""
    with subprocess.Popen(
        words,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        try:
            out, complaints = child.communicate(timeout=TEST_TIMEOUT_SECONDS)
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            raise
    return child.returncode, out.strip() or complaints.strip()
