"""What comes out of /work, whatever its files claim to be."""

import errno
import os
import tarfile
import threading

import pytest

from miles_periodic.plugins.pbox.node import trees
from miles_periodic.plugins.pbox.node.beneath import WorkFiles
from miles_periodic.plugins.pbox.node.layers import Layers

DISK_BYTES = 1 << 20


@pytest.fixture
def files(tmp_path):
    (tmp_path / "files/tree").mkdir(parents=True)
    return WorkFiles(Layers(tmp_path), DISK_BYTES)


def packed(files):
    """The members of a download, by name."""
    source, sink = os.pipe()
    packing = threading.Thread(target=trees.pack, args=(files, "tree", sink))
    packing.start()
    with os.fdopen(source, "rb") as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        members = {
            member.name: archive.extractfile(member).read() if member.isfile() else member.type
            for member in archive
        }
    packing.join()
    return members


def make_sparse(path, num_bytes):
    with path.open("wb") as file:
        file.truncate(num_bytes)


def test_a_file_that_claims_to_be_larger_than_its_disk_is_not_read(files):
    make_sparse(files.layers.files / "sparse", DISK_BYTES + 1)
    with pytest.raises(OSError) as refused:
        files.open_to_read("sparse")
    assert refused.value.errno == errno.EFBIG


def test_files_that_together_claim_more_than_their_disk_are_no_download(files):
    for name in ("one", "two"):
        make_sparse(files.layers.files / "tree" / name, DISK_BYTES // 2 + 1)
    with pytest.raises(OSError) as refused:
        trees.check_folder(files, "tree")
    assert refused.value.errno == errno.EFBIG


def test_a_tree_as_large_as_its_disk_is_downloaded(files):
    (files.layers.files / "tree/full").write_bytes(b"x" * DISK_BYTES)
    trees.check_folder(files, "tree")
    assert packed(files) == {"full": b"x" * DISK_BYTES}


def test_a_file_that_is_gone_when_it_is_opened_is_left_out(files, monkeypatch):
    folder, native = files.layers.files / "tree", trees._opened
    for name in ("gone", "stays"):
        (folder / name).write_bytes(b"x")

    def opened(descriptor, entry):
        (folder / "gone").unlink(missing_ok=True)
        return native(descriptor, entry)

    monkeypatch.setattr(trees, "_opened", opened)
    assert packed(files) == {"stays": b"x"}


def test_a_file_that_shrinks_while_it_is_read_keeps_its_length(files, monkeypatch):
    path, native = files.layers.files / "tree/file", trees._opened
    path.write_bytes(b"x" * 100)

    def opened(descriptor, entry):
        found = native(descriptor, entry)
        os.truncate(path, 10)
        return found

    monkeypatch.setattr(trees, "_opened", opened)
    assert packed(files) == {"file": b"x" * 10 + bytes(90)}


def test_pipes_are_left_out_and_do_not_hold_up_a_download(files):
    os.mkfifo(files.layers.files / "tree/pipe")
    assert packed(files) == {}
