"""`miles upstream prepare` on small checkouts: what it makes, leaves alone and refuses."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from miles_periodic.cli import upstream
from miles_periodic.cli.upstream import prepare
from miles_periodic.hooks import PeriodicError
from miles_periodic.upstream.contributions import contribution_at
from miles_periodic.upstream.rows import row_from

SCHEDULE = """\
def schedule(samples):
    order = sorted(samples)
    return order
"""
CONTRIBUTION = """
title = "Sort longest first"
branch = "longest"
row = "miles/longest"
motivation = "Waiting."
design = "Sorting."
compatibility = "Off by default."

[[step]]
subject = "Add longest"
body = "It sorts."
adds = ["miles/longest.py", "tests/test_longest.py"]

[[step]]
subject = "Schedule by longest"
body = ""
adds = ["tests/test_schedule.py"]

[[step.edit]]
file = "miles/schedule.py"
do = "import"
code = "from miles.longest import longest"

[[step.edit]]
file = "miles/schedule.py"
in = "schedule"
at = { assigns = "order" }
do = "replace"
code = "order = longest(  samples )"
"""
FILES = {
    "miles/longest.py": "def longest(samples):\n    return sorted(samples, reverse=True)\n",
    "tests/test_longest.py": (
        "from miles.longest import longest\n\n\n"
        "def test_longest():\n    assert longest([1, 2]) == [2, 1]\n"
    ),
    "tests/test_schedule.py": (
        "from miles.schedule import schedule\n\n\n"
        "def test_schedule():\n    assert schedule([1, 2]) == [2, 1]\n"
    ),
}
BLACK = """
repos:
  - repo: https://example.org/black
    rev: 24.3.0
    hooks:
      - id: black
  - repo: https://example.org/pylint
    rev: v3.0
    hooks:
      - id: pylint
"""


def git(folder, *words):
    done = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture(autouse=True)
def plain_pytest(monkeypatch):
    """The tests that are run for a step need none of the plugins of this environment."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)


@pytest.fixture
def checkout(tmp_path):
    """A checkout of a small Miles, with a person who commits."""
    folder = tmp_path / "miles"
    (folder / "miles").mkdir(parents=True)
    (folder / "miles" / "__init__.py").write_text("")
    (folder / "miles" / "schedule.py").write_text(SCHEDULE)
    git(tmp_path, "init", "--quiet", "--initial-branch", "main", folder)
    git(folder, "config", "user.name", "A Person")
    git(folder, "config", "user.email", "person@example.org")
    commit(folder, "base")
    return folder


def commit(folder, message):
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", message)


@pytest.fixture
def change(tmp_path, monkeypatch):
    """`change(text=…, files=…)`: what there is to send, instead of what we have."""
    part = {
        "title": "t",
        "state": "unsent",
        "forwarded": "no",
        "last-update": "2026-11-30",
        "description": "samples are sorted",
        "probe": [{"defines": "miles.longest:longest"}],
    }
    row = row_from("miles/longest", part)
    monkeypatch.setattr("miles_periodic.upstream.contributions.ledger", lambda: {row.key: row})

    def put(text=CONTRIBUTION, files=FILES):
        folder = tmp_path / "contributions" / "miles" / "packing"
        for path, code in files.items():
            (folder / "files" / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / "files" / f"{path}.txt").write_text(code)
        (folder / "contribution.toml").write_text(text)
        made = contribution_at(folder / "contribution.toml")
        monkeypatch.setattr(prepare, "contributions", lambda: {("packing", "miles"): made})

    put()
    return put


def run(checkout, *more):
    words = ["prepare", "packing", "--checkout", str(checkout), *more]
    return CliRunner().invoke(upstream.app, words, catch_exceptions=False)


def state(folder):
    """All that belongs to the user: branches but ours, index, files, work trees, stashes."""
    branches = git(folder, "for-each-ref", "refs/heads/main", "refs/tags", "refs/remotes")
    files = {
        path: path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(folder).parts
    }
    words = (("status", "--porcelain=v2", "--branch"), ("worktree", "list"), ("stash", "list"))
    return [branches, files, *(git(folder, *each) for each in words)]


def refused(checkout, said, *more):
    before = state(checkout), git(checkout, "for-each-ref"), git(checkout, "config", "--list")
    with pytest.raises(PeriodicError, match=said) as error:
        run(checkout, *more)
    after = state(checkout), git(checkout, "for-each-ref"), git(checkout, "config", "--list")
    assert after == before
    return error.value


def test_each_step_is_a_commit_that_is_signed_off(checkout, change):
    run(checkout)
    log = git(
        checkout,
        "log",
        "--reverse",
        "--format=%s|%an|%(trailers:key=Signed-off-by)",
        "main..longest",
    )
    assert [line for line in log.splitlines() if line] == [
        "Add longest|A Person|Signed-off-by: A Person <person@example.org>",
        "Schedule by longest|A Person|Signed-off-by: A Person <person@example.org>",
    ]
    assert git(checkout, "merge-base", "main", "longest") == git(checkout, "rev-parse", "main")


def test_each_commit_leaves_the_tree_importable(checkout, change):
    run(checkout)
    for ref in ("longest~1", "longest"):
        tree = checkout.parent / ref.replace("~", "-")
        git(checkout, "worktree", "add", "--quiet", "--detach", str(tree), ref)
        code = "import miles.longest, miles.schedule"
        subprocess.run([sys.executable, "-c", code], cwd=tree, check=True)


def test_the_user_s_branch_index_and_files_are_untouched_also_when_dirty(checkout, change):
    (checkout / "miles" / "schedule.py").write_text("half written")
    (checkout / "new.py").write_text("untracked")
    (checkout / "staged.py").write_text("staged")
    git(checkout, "add", "staged.py")
    before = state(checkout)
    run(checkout)
    assert state(checkout) == before


def test_hooks_of_the_checkout_do_not_run_and_nothing_is_pushed(checkout, change, tmp_path):
    git(tmp_path, "init", "--quiet", "--bare", "remote")
    git(checkout, "remote", "add", "origin", str(tmp_path / "remote"))
    git(checkout, "config", "push.autoSetupRemote", "true")
    for name in ("pre-commit", "commit-msg", "post-commit", "post-checkout"):
        hook = checkout / ".git" / "hooks" / name
        hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\nexit 1\n")
        hook.chmod(0o755)
    run(checkout)
    assert not (tmp_path / "ran").exists()
    assert git(tmp_path / "remote", "for-each-ref") == ""


def test_a_branch_starts_at_the_base_that_is_named(checkout, change):
    first = git(checkout, "rev-parse", "HEAD").strip()
    (checkout / "later.py").write_text("")
    commit(checkout, "later")
    run(checkout, "--base", "HEAD~1", "--branch", "mine")
    assert git(checkout, "merge-base", "main", "mine").strip() == first


def test_the_text_is_the_branch_s_description_and_in_the_file(checkout, change, tmp_path):
    run(checkout, "--body", str(tmp_path / "body.md"))
    text = (tmp_path / "body.md").read_text()
    assert text.startswith("Sort longest first\n\n## Motivation\n\nWaiting.")
    assert git(checkout, "config", "branch.longest.description").strip() == text.strip()


def test_the_text_fills_the_upstream_s_own_template(checkout, change, tmp_path):
    (checkout / ".github").mkdir()
    template = "## Why\n\n## Checklist\n- [ ] reviewed\n"
    (checkout / ".github" / "pull_request_template.md").write_text(template)
    commit(checkout, "template")
    run(checkout, "--body", str(tmp_path / "body.md"))
    text = (tmp_path / "body.md").read_text()
    assert "## Why\n\nWaiting.\n" in text and "- [ ] reviewed" in text


def test_numbers_of_a_result_stand_in_the_text(checkout, change, tmp_path):
    (tmp_path / "result.json").write_text('[{"ratio": 1.5}]')
    run(checkout, "--measured", str(tmp_path / "result.json"), "--body", str(tmp_path / "body.md"))
    assert "## Measurements\n\n| ratio |\n| --- |\n| 1.5 |\n" in (tmp_path / "body.md").read_text()


def test_the_upstream_s_formatter_runs_and_a_tool_that_is_missing_is_named(checkout, change):
    (checkout / ".pre-commit-config.yaml").write_text(BLACK)
    commit(checkout, "style")
    done = run(checkout)
    assert "order = longest(samples)" in git(checkout, "show", "longest:miles/schedule.py")
    assert "pylint is not installed" in done.stderr and "(pinned: 24.3.0)" in done.stderr


def test_a_file_that_the_base_left_unformatted_is_not_reformatted(checkout, change):
    odd = SCHEDULE.replace("sorted(samples)", "sorted( samples )") + "x = {  }\n"
    (checkout / "miles" / "schedule.py").write_text(odd)
    (checkout / ".pre-commit-config.yaml").write_text(BLACK)
    commit(checkout, "style")
    done = run(checkout)
    assert "x = {  }" in git(checkout, "show", "longest:miles/schedule.py")
    assert "black is not run on miles/schedule.py" in done.stderr


def test_a_linter_that_refuses_the_change_stops_it(checkout, change):
    ruff = BLACK.replace("id: black", "id: ruff-check")
    (checkout / ".pre-commit-config.yaml").write_text(ruff)
    commit(checkout, "style")
    change(files={**FILES, "miles/longest.py": "import os\n" + FILES["miles/longest.py"]})
    refused(checkout, "ruff-check, which the upstream runs, does not accept")


def test_the_added_tests_prove_the_steps(checkout, change, tmp_path):
    run(checkout, "--test", "--body", str(tmp_path / "body.md"))
    text = (tmp_path / "body.md").read_text()
    assert "- Add longest: 1 passed" in text and "- Schedule by longest: 1 passed" in text
    assert "on the commit before: 1 failed" in text


def test_tests_that_pass_without_the_step_prove_nothing_and_are_refused(checkout, change):
    weak = "def test_schedule():\n    assert True\n"
    change(files={**FILES, "tests/test_schedule.py": weak})
    error = refused(checkout, "do not prove the change", "--test")
    assert "on the commit before: 1 passed" in error.parts["found"]


def test_tests_that_fail_with_the_step_are_refused(checkout, change):
    wrong = FILES["tests/test_schedule.py"].replace("[2, 1]", "[9]")
    change(files={**FILES, "tests/test_schedule.py": wrong})
    refused(checkout, "do not prove the change", "--test")


def test_a_target_that_drifted_is_refused_with_what_was_expected(checkout, change):
    drifted = SCHEDULE.replace("order", "queue")
    (checkout / "miles" / "schedule.py").write_text(drifted)
    commit(checkout, "drift")
    parts = refused(checkout, "not what the change for miles was written for").parts
    assert parts["target"] == "miles/schedule.py:schedule"
    assert parts["expected"] == "one statement that assigns order"
    assert parts["found"] == "none"
    assert "--base" in parts["remedy"]


def test_a_file_that_is_gone_is_refused(checkout, change):
    git(checkout, "rm", "--quiet", "miles/schedule.py")
    commit(checkout, "gone")
    assert refused(checkout, "written for").parts["found"] == "no such file"


def test_a_base_that_has_the_change_says_so(checkout, change):
    run(checkout)
    git(checkout, "merge", "--quiet", "longest")
    error = refused(checkout, "The base has miles/longest already", "--branch", "again")
    assert "miles upstream show miles/longest" in error.parts["remedy"]


def test_a_branch_that_is_there_is_kept(checkout, change):
    run(checkout)
    refused(checkout, "has a branch longest already")


@pytest.mark.parametrize("name", ["HEAD", "-x", "a b", "bad..name"])
def test_a_name_that_is_none_for_a_branch_is_refused_before_anything_is_made(
    checkout, change, name
):
    git(checkout, "checkout", "--quiet", "--detach")
    refused(checkout, "is no name that git takes for a branch", f"--branch={name}")


def test_a_name_below_that_of_a_branch_names_the_branch(checkout, change):
    git(checkout, "branch", "mine/first")
    refused(checkout, "has a branch mine/first already", "--branch", "mine")


def test_nobody_to_sign_off_is_said(checkout, change, monkeypatch, tmp_path):
    git(checkout, "config", "--unset", "user.email")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    assert "git config user.name" in refused(checkout, "signed off").parts["remedy"]


def test_a_ref_that_is_not_there_is_named(checkout, change):
    refused(checkout, "no commit 'origin/nothing'", "--base", "origin/nothing")


def test_numbers_that_are_not_there_are_refused(checkout, change):
    refused(checkout, "is no file", "--measured", "nothing.json")


def test_a_python_that_is_none_is_refused(checkout, change):
    refused(checkout, "cannot be run", "--test", "--python", "/nowhere/python")


def test_a_text_that_cannot_be_written_leaves_no_branch(checkout, change):
    refused(checkout, "cannot be written", "--body", "/nowhere/body.md")


def test_line_ends_of_a_file_that_is_edited_stay_as_they_are(checkout, change):
    (checkout / "miles" / "schedule.py").write_bytes(SCHEDULE.replace("\n", "\r\n").encode())
    commit(checkout, "line ends")
    run(checkout)
    numbers = git(checkout, "diff", "--numstat", "main", "longest", "--", "miles/schedule.py")
    assert numbers.split()[:2] == ["3", "1"], "an import, a blank line, a statement"


def test_another_project_s_checkout_is_refused(tmp_path, change):
    git(tmp_path, "init", "--quiet", "other")
    other = Path(tmp_path / "other")
    (other / "a.py").write_text("")
    git(other, "config", "user.name", "A")
    git(other, "config", "user.email", "a@example.org")
    commit(other, "base")
    assert refused(other, "can be sent to miles").parts["found"] == "no package of theirs"


def test_a_folder_outside_of_git_is_refused(tmp_path, change):
    with pytest.raises(PeriodicError, match="no git checkout"):
        run(tmp_path)


def test_a_feature_without_a_contribution_names_those_that_have_one(checkout):
    with pytest.raises(PeriodicError, match="ready to be sent") as error:
        CliRunner().invoke(
            upstream.app,
            ["prepare", "cost-aware-pack", "--checkout", str(checkout)],
            catch_exceptions=False,
        )
    assert "cost-aware-packing" in error.value.parts["remedy"]
