"""A layer is copied as it is, and no link of it is followed."""

import errno
import os

import pytest

from miles_periodic.plugins.pbox.node import copies


@pytest.fixture
def ends(tmp_path):
    for name in ("from", "to"):
        (tmp_path / name).mkdir()
    return tmp_path / "from", tmp_path / "to"


def test_files_folders_and_links_are_copied_with_their_marks(ends):
    source, target = ends
    (source / "a/b").mkdir(parents=True)
    (source / "a/b/file").write_bytes(b"x" * 3_000_000)
    (source / "a/b/file").chmod(0o4750)
    (source / "a/link").symlink_to("/etc/shadow")
    os.utime(source / "a/b", ns=(1, 2))
    copies.copy_layer(source, target)
    assert (target / "a/b/file").read_bytes() == b"x" * 3_000_000
    assert (target / "a/b/file").stat().st_mode & 0o7777 == 0o750
    assert os.readlink(target / "a/link") == "/etc/shadow"
    assert (target / "a/b").stat().st_mtime_ns == 2


def test_holes_take_no_room(ends):
    source, target = ends
    with (source / "sparse").open("wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 30)
        file.write(b"here")
    copies.copy_layer(source, target)
    found = (target / "sparse").stat()
    assert (found.st_size, found.st_blocks * 512 < 1 << 20) == (1 << 40, True)
    with (target / "sparse").open("rb") as file:
        file.seek(1 << 30)
        assert file.read(4) == b"here"


def test_a_folder_that_becomes_a_link_is_not_followed(ends, tmp_path, monkeypatch):
    source, target = ends
    (source / "folder").mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("the node's")
    native = copies._copy_opened

    def swapped(*arguments):
        (source / "folder").rmdir()
        (source / "folder").symlink_to(tmp_path / "secret")
        native(*arguments)

    monkeypatch.setattr(copies, "_copy_opened", swapped)
    copies.copy_layer(source, target)
    assert list(target.iterdir()) == []


def test_pipes_are_left_out(ends):
    source, target = ends
    os.mkfifo(source / "pipe")
    copies.copy_layer(source, target)
    assert list(target.iterdir()) == []


def test_a_tree_without_end_is_refused(ends):
    source, target = ends
    folder = os.open(source, os.O_RDONLY)
    for _ in range(copies.MAX_DEPTH + 2):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    with pytest.raises(OSError) as refused:
        copies.copy_layer(source, target)
    assert refused.value.errno == errno.ELOOP
