"""Where a result cannot be written is found before a rehearsal, and said with the option."""

import os

import pytest

from miles_periodic.cli.whole_file import check_writable, write_whole
from miles_periodic.hooks import PeriodicError


def test_folders_above_a_file_are_made(tmp_path):
    write_whole(tmp_path / "a" / "b.json", "text", "--json")
    assert (tmp_path / "a" / "b.json").read_text() == "text"


def test_a_folder_in_place_of_the_file_is_refused(tmp_path):
    with pytest.raises(PeriodicError, match="it is a folder") as refused:
        check_writable(tmp_path, "--report")
    assert refused.value.parts["remedy"].startswith("Give --report a file")


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PeriodicError, match="cannot be written"):
        check_writable(tmp_path / "file" / "report.html", "--report")


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    path.write_text("before")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(PeriodicError, match="No space left"):
        write_whole(path, "after", "--json")
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]
    assert path.read_text() == "before"
