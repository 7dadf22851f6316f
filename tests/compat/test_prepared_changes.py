"""What is ready to be sent, on checkouts made from releases.

It is proved by its own tests in a tree that has the targets; others are refused untouched.
"""

import os
import shutil

import pytest
from miles_trees import WHEEL
from repositories import git, repository
from typer.testing import CliRunner

from miles_periodic.cli import upstream
from miles_periodic.compat.conditions import judge
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks import PeriodicError
from miles_periodic.upstream.changed_files import changed_by
from miles_periodic.upstream.contributions import NotFound, contributions

#: Feature and upstream to the distribution, its release and the package in it that has the targets.
BASES = {
    ("delta-router-replay", "miles"): ("miles-rl", "0.0.2", "miles"),
    ("delta-router-replay", "sglang"): ("sglang", "0.5.23", "sglang"),
}
STYLE = """
repos:
  - repo: https://github.com/psf/black
    rev: 26.1.0
    hooks:
      - id: black
  - repo: https://github.com/pycqa/isort
    rev: 6.0.0
    hooks:
      - id: isort
        args: [--profile=black]
"""


@pytest.fixture(scope="module")
def checkout(unpacked, tmp_path_factory):
    """`checkout(distribution, version, package)`: that package of a wheel in a git repository."""

    def made(distribution, version, package):
        folder = tmp_path_factory.mktemp(f"{distribution}-{version}")
        own = distribution == "miles-rl"
        sources = WHEEL if own else unpacked(distribution, version, "3.11")
        shutil.copytree(sources / package, folder / package)
        (folder / ".pre-commit-config.yaml").write_text(STYLE)
        return repository(folder, folder.with_name(f"{folder.name}-git"))

    return made


def run(feature, folder, *more):
    words = ["prepare", feature, "--checkout", str(folder), *more]
    return CliRunner().invoke(upstream.app, words, catch_exceptions=False)


@pytest.mark.parametrize("key", BASES, ids="-".join)
def test_a_change_is_proved_by_its_own_tests_in_the_upstream_s_tree(
    key, checkout, sglang_path, monkeypatch, tmp_path
):
    folder, change = checkout(*BASES[key]), contributions()[key]
    monkeypatch.setenv("PYTEST_ADDOPTS", "--noconftest")
    if key[1] == "sglang":
        more = [*map(str, sglang_path(BASES[key][1])), os.environ.get("PYTHONPATH", "")]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, more)))
    head = git(folder, "rev-parse", "HEAD")
    run(key[0], folder, "--test", "--body", str(tmp_path / "body.md"))
    assert (git(folder, "rev-parse", "HEAD"), git(folder, "status", "--porcelain")) == (head, "")
    subjects = git(folder, "log", "--reverse", "--format=%s", f"main..{change.branch}").splitlines()
    assert subjects == [step.subject for step in change.steps]
    assert git(folder, "diff", "--check", f"main...{change.branch}") == ""
    text = (tmp_path / "body.md").read_text()
    assert "passed" in text and "on the commit before" in text
    _check_proof(change, folder, key[1])


def _check_proof(change, folder, name):
    """The ledger's probe finds the change in the branch, and not in the release."""
    assert not judge(change.change.probe, Tree.at(name, folder)).holds
    git(folder, "checkout", "--quiet", change.branch)
    assert judge(change.change.probe, Tree.at(name, folder)).holds
    with pytest.raises(PeriodicError, match=f"The base has {change.row} already"):
        run(change.name, folder, "--branch", "again")
    assert "again" not in git(folder, "branch", "--list")


@pytest.mark.parametrize(
    ("key", "release"),
    [
        (("delta-router-replay", "sglang"), ("sglang", "0.5.16")),
        (("cost-aware-packing", "miles"), ("miles-rl", "0.0.2")),
        (("kv-preservation", "miles"), ("miles-rl", "0.0.2")),
        (("delta-router-replay.sessions", "miles"), ("miles-rl", "0.0.2")),
        (("cost-aware-packing", "megatron"), ("megatron-core", "0.19.2")),
    ],
    ids=lambda each: "-".join(each),
)
def test_a_release_with_other_targets_is_refused(key, release, unpacked):
    tree = WHEEL if release[0] == "miles-rl" else unpacked(*release, "3.12")

    def text(path):
        return (tree / path).read_text("utf-8") if (tree / path).is_file() else None

    with pytest.raises(NotFound) as drift:
        list(changed_by(contributions()[key], text))
    assert drift.value.target.startswith(f"{key[1]}/")
