"""Exported patches are taken by the real git am, patch and quilt's rules, in their order."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.patches.checkout import git
from miles_periodic.patches.codemod import PointInFile, put_in, without_point
from miles_periodic.patches.export import Exported, export
from miles_periodic.patches.headers import Header

BASE = {
    "miles/a.py": b"def turn():\n    return 1\n",
    "miles/b.py": b"def turn():\r\n    return 2",
    "miles/sub/c.py": "# Größe\ndef turn(): pass\n".encode(),
}
WHO = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")


def stacked():
    now, sets = dict(BASE), []
    for feature, files in (("first", tuple(BASE)), ("second", ("miles/a.py", "miles/b.py"))):
        points = [PointInFile(file, feature, ("a/b",), ("turn",)) for file in files]
        after = put_in(points, now)
        now |= after
        header = Header(
            "miles", feature, "It asks.", "Because " * 20, ("miles#1",), ("x",), "Done."
        )
        sets.append(Exported(header, after, {"Origin": "vendor", "Forwarded": "not-needed"}))
    return now, sets


@pytest.fixture
def exported(tmp_path):
    now, sets = stacked()
    out = tmp_path / "out"
    export(out, BASE, sets, author="Ada <ada@example.org>", day="2026-11-30")
    tree = tmp_path / "tree"
    for file, data in BASE.items():
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        (tree / file).write_bytes(data)
    return out, tree, now


def there(tree):
    return {file: (tree / file).read_bytes() for file in BASE}


def test_git_am_takes_them(exported):
    out, tree, now = exported
    git(tree, "init", "--quiet")
    git(tree, "add", "--all")
    git(tree, *WHO, "commit", "--quiet", "--message", "Base")
    patches = sorted(map(str, (out / "git").glob("*.patch")))
    git(tree, *WHO, "am", "--quiet", "--keep-cr", *patches)
    assert there(tree) == now
    log = git(tree, "log", "--format=%an %s", "-2").decode().splitlines()
    assert log == ["Ada miles-periodic: second", "Ada miles-periodic: first"]


def test_patch_takes_the_quilt_series_in_order_and_gives_it_back(exported):
    if shutil.which("patch") is None:
        pytest.fail("install the Debian package patch")
    out, tree, now = exported
    series = (out / "quilt/series").read_text().split()
    assert series == ["0001-miles-first.patch", "0002-miles-second.patch"]
    for name in series:
        run("patch", "--binary", "-p1", "--fuzz=0", "-i", str(out / "quilt" / name), cwd=tree)
    assert there(tree) == now
    for name in reversed(series):
        run("patch", "--binary", "-R", "-p1", "-i", str(out / "quilt" / name), cwd=tree)
    assert there(tree) == BASE


def run(*command, cwd):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_patch_applied_can_be_reverted_by_us(exported):
    _, _, now = exported
    for file, data in now.items():
        for feature in ("first", "second"):
            data = without_point(data, feature, file)
        assert data == BASE[file]


def test_a_quilt_patch_has_a_header_that_dep_3_defines(exported):
    out, _, _ = exported
    head, _, diff = (out / "quilt/0001-miles-first.patch").read_bytes().partition(b"\n---\n")
    fields = dict(re.findall(r"^([A-Z][A-Za-z-]+): (.*)$", head.decode(), re.MULTILINE))
    assert fields == {
        "Description": "first",
        "Author": "Ada <ada@example.org>",
        "Origin": "vendor",
        "Forwarded": "not-needed",
        "Last-Update": "2026-11-30",
    }
    assert all(line.startswith(" ") or ": " in line for line in head.decode().splitlines())
    assert diff.lstrip().startswith(b"diff --git a/miles/a.py b/miles/a.py")


def test_a_relative_folder_gets_both_forms(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    export(Path("out"), BASE, stacked()[1], day="2026-11-30")
    written = {path.parent.name for path in (tmp_path / "out").rglob("*.patch")}
    assert written == {"git", "quilt"}


def test_a_folder_that_is_there_is_not_written_into(tmp_path):
    with pytest.raises(PeriodicError, match="a folder that does not exist yet"):
        export(tmp_path, BASE, stacked()[1], day="2026-11-30")
    assert list(tmp_path.iterdir()) == []


def test_a_git_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PeriodicError, match="git init failed"):
        export(tmp_path / "out", BASE, stacked()[1], day="2026-11-30")
    assert list(tmp_path.iterdir()) == []


def test_the_repository_that_a_git_hook_runs_in_stays_as_it_is(tmp_path, monkeypatch):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    git(theirs, "init", "--quiet")
    git(theirs, *WHO, "commit", "--quiet", "--allow-empty", "--message", "Theirs")
    before = git(theirs, "for-each-ref")
    monkeypatch.setenv("GIT_DIR", str(theirs / ".git"))
    _, sets = stacked()
    export(tmp_path / "out", BASE, sets, day="2026-11-30")
    monkeypatch.delenv("GIT_DIR")
    assert git(theirs, "for-each-ref") == before


def test_what_a_person_has_configured_does_not_change_the_patches(tmp_path, monkeypatch):
    hook = tmp_path / "template" / "hooks" / "prepare-commit-msg"
    hook.parent.mkdir(parents=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    settings = tmp_path / "gitconfig"
    settings.write_text(
        "[diff]\n\tnoprefix = true\n[format]\n\tnoprefix = true\n\tcoverLetter = true\n"
        f"[init]\n\ttemplateDir = {hook.parent.parent}\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    _, sets = stacked()
    written = export(tmp_path / "out", BASE, sets, day="2026-11-30")
    patches = [file for file in written if file.suffix == ".patch"]
    assert len(patches) == 2 * len(sets)
    assert all(b"diff --git a/miles/a.py b/miles/a.py" in file.read_bytes() for file in patches)
