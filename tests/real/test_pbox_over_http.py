"""Files of a sandbox as they are sent to another machine: what test_pbox_files does, over HTTP."""

import os

import pytest
from pbox_agent import shell

pytestmark = pytest.mark.real
MIB = 1 << 20


@pytest.fixture(scope="module")
def box(sandbox_host):
    with sandbox_host.sandbox() as made:
        yield made.over_http()


def test_a_file_goes_in_and_comes_out_as_it_was(box):
    data = os.urandom(3 * MIB + 17)
    box.write_bytes("a/b/data", data)
    assert box.read_bytes("/work/a/b/data") == data
    assert shell(box, "wc -c < a/b/data").stdout == b"3145745\n"


def test_a_local_file_goes_both_ways_and_keeps_its_mode(box, tmp_path):
    (tmp_path / "script").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "script").chmod(0o755)
    box.upload(tmp_path / "script", "script")
    assert box.exec(["./script"]).stdout == b"ran\n"
    box.download("script", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == (tmp_path / "script").read_bytes()


def test_a_link_to_a_file_of_the_node_leads_nowhere(box, tmp_path):
    (tmp_path / "secret").write_text("of the node")
    shell(box, f"ln -sfn {tmp_path}/secret trap; ln -sfn {tmp_path} out")
    for path in ("trap", "out/secret"):
        with pytest.raises(OSError):
            box.read_bytes(path)
    with pytest.raises(OSError):
        box.write_bytes("out/made", b"x")
    assert os.listdir(tmp_path) == ["secret"]
