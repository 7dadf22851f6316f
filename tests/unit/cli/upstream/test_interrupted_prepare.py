"""`miles upstream prepare` that is ended from outside: nothing is left of it, or all."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from miles_periodic.upstream.base import Base, GitError

SECONDS = 60
CONTRIBUTION = """
title = "Add longest"
branch = "longest"
row = "miles/longest"
motivation = "m"
design = "d"
compatibility = "c"

[[step]]
subject = "Add longest"
body = ""
adds = ["miles/longest.py", "tests/test_longest.py"]
"""
#: A test that tells who runs it, starts another process, and does not end.
ENDLESS = """
import os, subprocess, sys, time

def test_longest():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(os.environ["MARK"] + ".part", "w") as mark:
        mark.write(f"{os.getpid()} {child.pid}")
    os.rename(os.environ["MARK"] + ".part", os.environ["MARK"])
    time.sleep(600)
"""
#: The command line with one contribution, that of a file, instead of ours.
COMMAND = """
import sys
from pathlib import Path
from miles_periodic.cli import upstream
from miles_periodic.cli.upstream import prepare
from miles_periodic.upstream import contributions, rows

row = rows.row_from("miles/longest", {"title": "t", "state": "unsent", "forwarded": "no",
    "last-update": "2026-11-30", "description": "d"})
contributions.ledger = lambda: {row.key: row}
made = contributions.contribution_at(Path(sys.argv[1]))
prepare.contributions = lambda: {("packing", "miles"): made}
upstream.app(["prepare", "packing", *sys.argv[2:]])
"""
#: A git that waits at one of its commands, until it is told to go on.
WAITING_GIT = """#!/bin/sh
case " $* " in *" $HELD "*)
  touch "$MARK"
  while [ ! -e "$GO" ]; do sleep 0.05; done;;
esac
exec {git} "$@"
"""


def git(folder, *words):
    done = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "miles"
    (folder / "miles").mkdir(parents=True)
    (folder / "miles" / "__init__.py").write_text("")
    git(tmp_path, "init", "--quiet", "--initial-branch", "main", folder)
    git(folder, "config", "user.name", "A Person")
    git(folder, "config", "user.email", "person@example.org")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "base")
    return folder


@pytest.fixture
def prepare(checkout, tmp_path, monkeypatch):
    """`prepare(*words)`: the command in a process of its own, its temporary files in `tmp/`."""
    folder = tmp_path / "contributions" / "miles" / "packing"
    for path, text in {"miles/longest.py": "", "tests/test_longest.py": ENDLESS}.items():
        (folder / "files" / path).parent.mkdir(parents=True)
        (folder / "files" / f"{path}.txt").write_text(text)
    (folder / "contribution.toml").write_text(CONTRIBUTION)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("MARK", str(tmp_path / "mark"))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    started = []

    def run(*words):
        command = [sys.executable, "-c", COMMAND, folder / "contribution.toml"]
        child = subprocess.Popen(
            [*command, "--checkout", checkout, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Tests that a shell started in the background inherit that interrupts are ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        started.append(child)
        wait_for(lambda: (tmp_path / "mark").exists() or child.poll() is not None)
        assert child.poll() is None, child.communicate()[0]
        return child

    yield run
    for child in started:
        child.kill()
        child.communicate()


@pytest.fixture
def waiting_git(tmp_path, monkeypatch):
    """`waiting_git(words)`: git waits at the command that has these words; returns what lets go."""

    def at(words):
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / "git").write_text(WAITING_GIT.format(git=shutil.which("git")))
        (folder / "git").chmod(0o755)
        for name, value in {"HELD": words, "GO": str(tmp_path / "go")}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        return (tmp_path / "go").touch

    return at


def wait_for(condition):
    end = time.monotonic() + SECONDS
    while not (value := condition()):
        assert time.monotonic() < end, "not within a minute"
        time.sleep(0.02)
    return value


def is_running(number):
    with contextlib.suppress(OSError), open(f"/proc/{number}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] not in "ZX"
    return False


def state(folder):
    words = (("for-each-ref",), ("config", "--list", "--local"), ("worktree", "list"))
    administered = folder / ".git" / "worktrees"
    left = sorted(administered.iterdir()) if administered.is_dir() else []
    return [*(git(folder, *each) for each in words), git(folder, "status", "--porcelain"), left]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_nothing_is_left_where_it_is_ended_while_tests_run(number, checkout, prepare, tmp_path):
    before = state(checkout)
    child = prepare("--test")
    tests = (tmp_path / "mark").read_text().split()
    child.send_signal(number)
    said, _ = child.communicate(timeout=SECONDS)
    assert (child.returncode, "nothing was kept" in said) == (130, True), said
    assert state(checkout) == before
    assert list((tmp_path / "tmp").glob("miles-prepare-*")) == []
    wait_for(lambda: not any(map(is_running, tests)))


@pytest.mark.parametrize("at", ["worktree add", "worktree remove", "commit --quiet"])
def test_nothing_is_left_where_it_is_ended_while_git_works(
    at, checkout, prepare, waiting_git, tmp_path
):
    before = state(checkout)
    go = waiting_git(at)
    child = prepare()
    child.send_signal(signal.SIGTERM)
    go()
    said, _ = child.communicate(timeout=SECONDS)
    assert child.returncode == 130, said
    assert state(checkout) == before
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_branch_is_whole_where_it_is_ended_while_it_is_named(checkout, prepare, waiting_git):
    go = waiting_git("branch --no-track")
    child = prepare()
    child.send_signal(signal.SIGTERM)
    go()
    child.communicate(timeout=SECONDS)
    assert child.returncode == -signal.SIGTERM
    assert git(checkout, "log", "--format=%s", "main..longest").strip() == "Add longest"
    assert git(checkout, "config", "branch.longest.description").startswith("Add longest\n")


def test_a_branch_without_its_text_is_taken_back(checkout):
    base = Base.at(checkout, "HEAD")
    before = state(checkout)
    (checkout / ".git" / "config.lock").touch()
    with pytest.raises(GitError, match="git config failed"):
        base.keep("longest", base.commit, "text")
    (checkout / ".git" / "config.lock").unlink()
    assert state(checkout) == before
