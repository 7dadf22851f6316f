"""Wheels become folders of sources: once, whole or not at all, and nothing but sources."""

import pytest

from miles_periodic.compat.matrix import wheels
from miles_periodic.compat.matrix.releases import release_named
from miles_periodic.hooks import PeriodicError

RELEASE = release_named("sglang==90.1")


def test_a_wheel_is_unpacked_into_the_users_cache_without_its_binaries(index, tmp_path):
    index("sglang", "90.1", {"sglang/srt/x.py": "x = 1\n", "sglang/core.so": "binary"})
    folder = wheels.unpacked(RELEASE)
    assert folder == tmp_path / "cache" / "miles-periodic" / "trees" / "sglang-90.1"
    assert [p.name for p in folder.rglob("*") if p.is_file()] == ["x.py"]
    assert set(RELEASE.trees(folder)) == {"sglang"}


def test_what_is_in_the_cache_is_not_downloaded_again(index, monkeypatch):
    index("sglang", "90.1", {"sglang/srt/x.py": ""})
    folder = wheels.unpacked(RELEASE)
    monkeypatch.setattr(wheels, "_download", None)
    assert wheels.unpacked(RELEASE) == folder


def test_a_release_that_cannot_be_had_is_an_error_that_says_what_to_do(index):
    with pytest.raises(PeriodicError, match=r"sglang==90\.1 could not be downloaded") as caught:
        wheels.unpacked(RELEASE)
    assert "No matching distribution found" in caught.value.parts["found"]
    assert "Connect to the index" in caught.value.parts["remedy"]


def test_a_failed_download_leaves_nothing_behind(index, tmp_path):
    with pytest.raises(PeriodicError):
        wheels.unpacked(RELEASE)
    assert list((tmp_path / "cache" / "miles-periodic" / "trees").iterdir()) == []


def test_an_index_that_does_not_answer_in_time_is_the_same_error(index, monkeypatch):
    monkeypatch.setattr(wheels, "DOWNLOAD_TIMEOUT_SECONDS", 0.001)
    with pytest.raises(PeriodicError, match="could not be downloaded") as caught:
        wheels.unpacked(RELEASE)
    assert "no answer within" in caught.value.parts["found"]


def test_of_two_processes_the_first_one_publishes(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.py").write_text(name)
        wheels._publish(tmp_path / name, tmp_path / "published")
    assert (tmp_path / "published" / "x.py").read_text() == "one"
    assert not (tmp_path / "two").exists()
