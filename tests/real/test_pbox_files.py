"""Files into a sandbox and out of it, where the sandbox's own code sets traps for them."""

import http.client
import os
import socket
import tarfile

import pytest
from becoming import becomes
from pbox_agent import left_behind

from miles_periodic.plugins.pbox import Limits, SandboxGone

pytestmark = pytest.mark.real
MIB = 1 << 20


@pytest.fixture(scope="module")
def running(sandbox_agent):
    return sandbox_agent


@pytest.fixture(scope="module")
def host(sandbox_host):
    return sandbox_host


@pytest.fixture(scope="module")
def shared(host):
    with host.sandbox() as box:
        yield box


@pytest.fixture
def box(host):
    with host.sandbox() as made:
        yield made


def shell(box, text, **options):
    return box.exec(["sh", "-c", text], **options)


def test_a_file_goes_in_and_comes_out_as_it_was(shared):
    data = os.urandom(3 * MIB + 17)
    shared.write_bytes("a/b/data", data)
    assert shared.read_bytes("/work/a/b/data") == data


def test_files_and_commands_take_turns_on_one_connection(shared):
    for number in range(20):
        shared.write_bytes("turn", bytes([number]) * MIB)
        assert shared.read_bytes("turn") == bytes([number]) * MIB
        assert shared.exec(["wc", "-c", "turn"]).stdout == b"1048576 turn\n"


def test_the_sandbox_sees_what_was_written_and_may_change_it(shared):
    shared.write_text("note", "one\n")
    assert shell(shared, "cat note; echo two >> note").stdout == b"one\n"
    assert shared.read_text("note") == "one\ntwo\n"


def test_a_file_that_is_replaced_is_seen_at_once(shared):
    shared.write_text("changing", "old")
    assert shell(shared, "cat changing").stdout == b"old"
    shared.write_text("changing", "new and longer")
    assert shell(shared, "cat changing").stdout == b"new and longer"


def test_a_file_keeps_its_mode(shared, tmp_path):
    (tmp_path / "script").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "script").chmod(0o755)
    shared.upload(tmp_path / "script", "script")
    assert shared.exec(["./script"]).stdout == b"ran\n"


def test_a_download_replaces_the_local_file_whole(shared, tmp_path):
    shared.write_bytes("whole", b"x" * MIB)
    shared.download("whole", tmp_path / "whole")
    assert (tmp_path / "whole").read_bytes() == b"x" * MIB
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]


def test_a_file_that_is_not_there_is_an_os_error(shared):
    with pytest.raises(FileNotFoundError):
        shared.read_bytes("nowhere")


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/passwd", "", "/work", "."])
def test_a_path_outside_work_is_refused(shared, path):
    with pytest.raises(OSError):
        shared.write_bytes(path, b"x")


@pytest.mark.parametrize("target", ["/etc/shadow", "../../../../../etc/shadow",
                                    "/proc/self/root/etc/shadow"])  # fmt: skip
def test_a_link_to_a_file_of_the_node_leads_nowhere(shared, target):
    shell(shared, f"ln -sfn {target} trap")
    with pytest.raises(OSError):
        shared.read_bytes("trap")


def test_a_link_to_a_folder_of_the_node_cannot_be_written_through(shared, tmp_path):
    shell(shared, f"ln -sfn {tmp_path} out; ln -sfn / top")
    for path in ("out/x", f"top{tmp_path}/x"):
        try:
            shared.write_bytes(path, b"x")
        except OSError:
            continue
    assert list(tmp_path.iterdir()) == []


def test_writing_over_a_link_replaces_the_link(shared, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("safe")
    shell(shared, f"ln -sfn {outside} name")
    shared.write_text("name", "mine")
    assert (outside.read_text(), shared.read_text("name")) == ("safe", "mine")


def test_a_named_pipe_does_not_hold_up_the_agent(shared):
    shell(shared, "mkfifo pipe")
    with pytest.raises(OSError):
        shared.read_bytes("pipe")
    assert shared.exec(["echo", "here"]).ok


def sparse(path):
    """A command that makes a file far longer than any disk here."""
    return f'python3 -c \'open("{path}", "wb").truncate(1 << 40)\''


def test_a_snapshot_begins_others_with_what_was_written_and_removed(host):
    with host.sandbox() as box:
        shell(box, "echo one > note; mkfifo pipe; ln -s /etc/shadow link")
        shell(box, sparse("holes"))
        shell(box, "rm /etc/group; echo mine > /etc/mine; chmod 700 /work", user=0)
        snapshot = box.snapshot()
        shell(box, "echo two > note")
    for _ in range(2):
        with host.sandbox(snapshot=snapshot) as other:
            said = shell(other, "cat note /etc/mine; ls -A; ls /etc/group 2>&1; stat -c %U:%a .")
            lines = said.stdout.decode().split("\n")
            assert lines[:6] == ["one", "mine", "holes", "link", "note", "ls: /etc/group: No such "
                                 "file or directory"]  # fmt: skip
            shell(other, "echo three > note")
    host.drop_snapshot(snapshot)
    with pytest.raises(SandboxGone):
        host.start(snapshot=snapshot)


def test_a_snapshot_ends_with_its_connection(running):
    with running.connect() as host:
        kept = host.start().snapshot()
        assert kept in left_behind(running.folder)["files"]
    assert becomes(lambda: kept not in left_behind(running.folder)["files"])


def test_a_file_full_of_holes_does_not_fill_whoever_reads_it(host):
    with host.sandbox(limits=Limits(disk_bytes=4 * MIB)) as box:
        assert shell(box, f"mkdir d; {sparse('d/x')}").ok
        for read in (lambda: box.read_bytes("d/x"), lambda: box.download_tree("d", "/nowhere")):
            with pytest.raises(OSError, match="larger than its disk"):
                read()


def test_a_folder_goes_in_and_comes_out_with_its_links(box, tmp_path):
    tree = tmp_path / "tree"
    (tree / "deep/er").mkdir(parents=True)
    (tree / "deep/er/file").write_bytes(os.urandom(MIB))
    (tree / "link").symlink_to("deep/er/file")
    box.upload(tree, "in")
    assert shell(box, "readlink in/link; wc -c < in/link").stdout == b"deep/er/file\n1048576\n"
    assert box.download_tree("in", tmp_path / "back") == []
    assert (tmp_path / "back/link").read_bytes() == (tree / "deep/er/file").read_bytes()


def test_links_that_lead_out_are_left_out_of_a_download_and_named(box, tmp_path):
    shell(box, "mkdir d; echo x > d/file; ln -s /etc/shadow d/absolute; ln -s ../../.. d/up")
    assert sorted(box.download_tree("d", tmp_path / "d")) == ["absolute", "up"]
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["file"]


def test_an_archive_that_leads_out_of_its_folder_is_refused(running, host, box, tmp_path):
    for name in ("../up", "/absolute", "a/../../up"):
        with pytest.raises(OSError):
            put_archive(running, box, tmp_path, tarfile.TarInfo(name))


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE,
                                  tarfile.FIFOTYPE])  # fmt: skip
def test_an_archive_with_devices_pipes_or_hard_links_is_refused(running, box, tmp_path, kind):
    member = tarfile.TarInfo("thing")
    member.type, member.linkname = kind, "/etc/shadow"
    with pytest.raises(OSError):
        put_archive(running, box, tmp_path, member)


def test_an_archive_cannot_write_through_a_link_that_it_brought(running, box, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    link, file = tarfile.TarInfo("way"), tarfile.TarInfo("way/x")
    link.type, link.linkname = tarfile.SYMTYPE, str(outside)
    try:
        put_archive(running, box, tmp_path, link, file)
    except OSError:
        assert list(outside.iterdir()) == []
    assert list(outside.iterdir()) == []


def put_archive(running, box, folder, *members):
    """Upload an archive that no client of ours would make."""
    with tarfile.open(folder / "made.tar", "w") as archive:
        for member in members:
            archive.addfile(member)
    answer = request(running, "PUT", f"/v1/sandboxes/{box.name}/tree?path=unpacked",
                     (folder / "made.tar").read_bytes())  # fmt: skip
    if answer.status != 200:
        raise OSError(answer.status, answer.read().decode())


def request(running, method, path, body=b"", headers=()):
    connection = http.client.HTTPConnection("pbox", timeout=120)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(running.address.removeprefix("unix:"))
    all_headers = {"Authorization": f"Bearer {running.token()}", **dict(headers)}
    connection.request(method, path, body, all_headers)
    return connection.getresponse()


def test_an_upload_that_breaks_off_leaves_the_file_as_it_was(running, box):
    box.write_text("target", "whole")
    with socket.socket(socket.AF_UNIX) as broken:
        broken.connect(running.address.removeprefix("unix:"))
        broken.sendall(
            f"PUT /v1/sandboxes/{box.name}/file?path=target HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {running.token()}\r\nContent-Length: 1000\r\n\r\nhalf".encode()
        )
        broken.shutdown(socket.SHUT_WR)
        while broken.recv(1 << 16):
            pass  # Until the agent has noticed, and has closed its end.
    assert becomes(lambda: shell(box, "ls -A").stdout == b"target\n")
    assert shell(box, "cat target").stdout == b"whole"


def test_an_upload_larger_than_an_argument_list_is_streamed(shared):
    shared.write_bytes("large", b"x" * (8 * MIB))
    assert shell(shared, "wc -c < large").stdout == b"8388608\n"


def test_a_full_disk_is_an_os_error_and_leaves_no_half_file(host):
    with host.sandbox(limits=Limits(disk_bytes=4 * MIB)) as box:
        box.write_text("kept", "kept")
        with pytest.raises(OSError, match="28|No space"):
            box.write_bytes("big", b"x" * (8 * MIB))
        assert shell(box, "ls -A; cat kept").stdout == b"kept\nkept"


def test_a_tree_that_is_a_bomb_stops_at_the_sandboxs_own_disk(running, host, tmp_path):
    with host.sandbox(limits=Limits(disk_bytes=4 * MIB, num_files=100)) as box:
        with tarfile.open(tmp_path / "bomb.tar", "w") as archive:
            for number in range(1000):
                archive.addfile(tarfile.TarInfo(str(number)))
        body = (tmp_path / "bomb.tar").read_bytes()
        answer = request(running, "PUT", f"/v1/sandboxes/{box.name}/tree?path=t", body)
        assert (answer.status, b"No space" in answer.read()) == (422, True)
        assert int(shell(box, "ls t | wc -l").stdout) <= 100
