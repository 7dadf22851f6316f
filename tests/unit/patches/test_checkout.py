"""A git checkout, and what was changed in it; any other folder."""

import pytest

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.patches.checkout import Checkout, checkout_at, git
from miles_periodic.patches.codemod import PointInFile, put_in

SOURCE = b"def turn():\n    return 1\n"
WHO = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")


@pytest.fixture
def repository(tmp_path):
    (tmp_path / "python/miles").mkdir(parents=True)
    (tmp_path / "python/miles/a.py").write_bytes(SOURCE)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, *WHO, "commit", "--quiet", "--message", "Base")
    return tmp_path


FILE = "python/miles/a.py"


def patched(source=SOURCE, feature="packing"):
    point = PointInFile(FILE, feature, ("rollout/turn",), ("turn",))
    return put_in([point], {FILE: source})[FILE]


def test_a_folder_in_a_repository_is_its_checkout(repository):
    assert checkout_at(repository / "python") == Checkout(repository, True)


def test_a_folder_that_git_does_not_track_is_a_plain_one(repository):
    (repository / "venv").mkdir()
    (repository / "venv/b.py").touch()
    assert checkout_at(repository / "venv") == Checkout(repository / "venv", False)


def test_a_folder_without_git_is_a_plain_one(tmp_path):
    assert checkout_at(tmp_path) == Checkout(tmp_path, False)
    assert checkout_at(tmp_path).changed(["a.py"]) == ()


def test_what_is_no_folder_is_named(tmp_path):
    with pytest.raises(PeriodicError, match="no/such is no folder"):
        checkout_at(tmp_path / "no/such")


def test_a_file_as_in_head_is_not_changed(repository):
    assert checkout_at(repository).changed([FILE]) == ()


def test_a_file_with_our_points_alone_is_not_changed(repository):
    (repository / FILE).write_bytes(patched(patched(), "other"))
    assert checkout_at(repository).changed([FILE]) == ()


def test_a_file_with_somebodys_changes_is(repository):
    (repository / FILE).write_bytes(patched() + b"more = 1\n")
    assert checkout_at(repository).changed([FILE]) == (FILE,)


def test_points_that_were_committed_and_taken_out_are_no_change(repository):
    (repository / FILE).write_bytes(patched())
    git(repository, *WHO, "commit", "--quiet", "--all", "--message", "Patched")
    (repository / FILE).write_bytes(SOURCE)
    assert checkout_at(repository).changed([FILE]) == ()


def test_other_files_and_files_that_git_does_not_track_do_not_matter(repository):
    (repository / "python/miles/b.py").touch()
    assert checkout_at(repository).changed([FILE, "python/miles/b.py"]) == ()


@pytest.mark.parametrize("deleted", [True, False])
def test_a_file_that_is_gone_or_staged_is_changed(repository, deleted):
    if deleted:
        (repository / FILE).unlink()
    else:
        (repository / FILE).write_bytes(SOURCE + b"x = 1\n")
        git(repository, "add", "--all")
    assert checkout_at(repository).changed([FILE]) == (FILE,)


def test_line_ends_that_git_translates_are_no_change(repository):
    git(repository, "config", "core.autocrlf", "true")
    (repository / FILE).unlink()
    git(repository, "checkout", "--", FILE)
    source = (repository / FILE).read_bytes()
    assert b"\r\n" in source
    (repository / FILE).write_bytes(patched(source))
    assert checkout_at(repository).changed([FILE]) == ()


def test_the_author_is_whom_git_names(repository):
    git(repository, "config", "user.name", "Ada Lovelace")
    git(repository, "config", "user.email", "ada@example.org")
    assert checkout_at(repository).author() == "Ada Lovelace <ada@example.org>"
    assert Checkout(repository, False).author() == ""


def test_what_git_says_is_passed_on(tmp_path):
    with pytest.raises(PeriodicError, match="not a git repository"):
        git(tmp_path, "log")
