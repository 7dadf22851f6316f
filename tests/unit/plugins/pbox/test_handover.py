"""Open files of /work from an agent to a client on the same machine, over a real socket."""

import asyncio
import json
import os
import socket
import threading
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp import web

from miles_periodic.plugins.pbox.agent import handover, server
from miles_periodic.plugins.pbox.client import handover as client
from miles_periodic.plugins.pbox.client.handover import Handover
from miles_periodic.plugins.pbox.node import beneath
from miles_periodic.plugins.pbox.node.layers import Layers
from miles_periodic.plugins.pbox.outcomes import SandboxGone

pytestmark = pytest.mark.filterwarnings("ignore:It is recommended to use web.RequestKey")
TOKEN = "t" * 40
MIB = 1 << 20


class FakeAgent:
    """One sandbox, `box`, of the job `own`, whose files are below a folder of the test's."""

    def __init__(self, home):
        self.counts, self.has_box = Counter(), True
        self.tokens = SimpleNamespace(job_of={TOKEN: "own", "o" * 40: "other"}.get)
        limits = SimpleNamespace(disk_bytes=16 * MIB)
        self.sandbox = SimpleNamespace(layers=Layers(home), limits=limits)

    def find(self, job, name):
        if (job, name) != ("own", "box") or not self.has_box:
            raise SandboxGone(f"The job {job!r} has no sandbox {name!r}.")
        return None, self.sandbox


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(beneath, "USER_ID", os.getuid())
    for name in ("files", "staged"):
        (tmp_path / name).mkdir()
    return tmp_path


@asynccontextmanager
async def handing(home, token=TOKEN):
    """The agent, listening, and a client of it."""
    agent, path = FakeAgent(home), f"{home}/socket"
    runner = web.AppRunner(server.make_app(agent), handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    await web.UnixSite(runner, path).start()
    files = Handover(path, token)
    try:
        yield agent, files
    finally:
        files.close()
        await runner.cleanup()


def run(home, use, **options):
    async def whole():
        async with handing(home, **options) as (agent, files):
            return await use(agent, files)

    return asyncio.run(asyncio.wait_for(whole(), 120))


async def written(files, path, data, mode=0o644):
    async with files.to_write("box", path, mode) as descriptor:
        await client.fill(descriptor, data)


async def read(files, path):
    async with files.to_read("box", path) as opened:
        return await client.content(*opened)


@pytest.mark.parametrize("num_bytes", [0, 1, MIB + 1, 2 * client.PIECE_BYTES + 1])
def test_a_file_goes_in_and_comes_out_as_it_was(home, num_bytes):
    data = os.urandom(num_bytes)

    async def use(agent, files):
        await written(files, "a/b", data, 0o751)
        return await read(files, "/work/a/b"), dict(agent.counts)

    assert run(home, use) == (data, {"uploads": 1, "downloads": 1})
    assert (home / "files/a/b").stat().st_mode & 0o7777 == 0o751


def test_one_connection_carries_many_files(home):
    async def use(agent, files):
        for number in range(20):
            await written(files, "turn", bytes([number]))
            assert await read(files, "turn") == bytes([number])
        return len(files._idle)

    assert run(home, use) == 1


def test_connections_that_nothing_was_asked_on_are_ended_before_the_agent_ends_them(
    home, monkeypatch
):
    monkeypatch.setattr(client, "MOST_IDLE_SECONDS", 0.0)

    async def use(agent, files):
        for number in range(3):
            await written(files, "turn", bytes([number]))
        return len(files._idle), await read(files, "turn")

    assert run(home, use) == (1, b"\2")


def test_the_agent_ends_a_connection_on_which_nothing_is_asked(home, monkeypatch):
    monkeypatch.setattr(handover, "IDLE_SECONDS", 0.05)

    async def use(agent, files):
        assert await files.works()
        connection = files._idle.pop()[1]
        said = await asyncio.get_running_loop().sock_recv(connection, 1)
        connection.close()
        return said

    assert run(home, use) == b""


def test_many_files_at_once_have_a_connection_each(home):
    async def use(agent, files):
        await asyncio.gather(*(written(files, str(n), bytes([n])) for n in range(20)))
        return [await read(files, str(n)) for n in range(20)]

    assert run(home, use) == [bytes([n]) for n in range(20)]


def test_a_file_is_replaced_when_all_of_it_was_written_and_not_before(home):
    (home / "files/name").write_text("old")

    async def use(agent, files):
        with pytest.raises(RuntimeError, match="half"):
            async with files.to_write("box", "name", 0o644) as descriptor:
                os.write(descriptor, b"new")
                raise RuntimeError("half")
        while os.listdir(home / "staged"):  # the agent hears of the end a moment later
            await asyncio.sleep(0.01)
        return (home / "files/name").read_text()

    assert run(home, use) == "old"


def test_a_link_out_of_work_is_not_handed_over(home, tmp_path_factory):
    secret = tmp_path_factory.mktemp("node") / "secret"
    secret.write_text("of the node")
    (home / "files/link").symlink_to(secret)
    (home / "files/up").symlink_to("../" * 30 + str(secret)[1:])

    async def use(agent, files):
        for name in ("link", "up"):
            with pytest.raises(FileNotFoundError):
                await read(files, name)
        await written(files, "link", b"mine")

    run(home, use)
    assert secret.read_text() == "of the node"
    assert (home / "files/link").read_bytes() == b"mine"


def _bind(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        os.mkdir,
        _bind,
        lambda path: Path(path).touch() or os.truncate(path, 17 * MIB),
    ],
    ids=["pipe", "folder", "socket", "larger-than-its-disk"],
)
def test_what_is_no_plain_file_of_its_size_is_not_handed_over(home, make, monkeypatch):
    monkeypatch.chdir(home / "files")  # a socket's whole path would be too long
    make("it")

    async def use(agent, files):
        with pytest.raises(OSError):
            await read(files, "it")

    run(home, use)


def test_what_is_handed_over_to_be_read_cannot_be_written(home):
    (home / "files/name").write_text("old")

    async def use(agent, files):
        async with files.to_read("box", "name") as (descriptor, _):
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.write(descriptor, b"new")

    run(home, use)


def test_another_jobs_sandbox_is_not_there(home):
    async def use(agent, files):
        with pytest.raises(SandboxGone):
            await read(files, "name")

    run(home, use, token="o" * 40)


def test_a_token_of_no_job_gets_no_file(home):
    async def use(agent, files):
        return await files.works()

    assert run(home, use, token="x" * 40) is False


def test_a_sandbox_that_ended_while_its_file_was_written_takes_none(home):
    async def use(agent, files):
        with pytest.raises(SandboxGone):
            async with files.to_write("box", "name", 0o644):
                agent.has_box = False

    run(home, use)
    assert os.listdir(home / "files") == os.listdir(home / "staged") == []


@pytest.mark.parametrize("num_bytes", [0, 1, 2 * client.PIECE_BYTES + 1])
def test_a_file_is_copied_into_another(tmp_path, num_bytes):
    data = os.urandom(num_bytes)
    (tmp_path / "from").write_bytes(data)
    with (tmp_path / "from").open("rb") as source, (tmp_path / "to").open("wb") as target:
        asyncio.run(client.copy(source.fileno(), target.fileno(), num_bytes))
    assert (tmp_path / "to").read_bytes() == data


def test_a_copy_that_is_given_up_no_longer_uses_its_files(monkeypatch):
    """A thread cannot be stopped, and the number of a closed file is soon another one's."""
    begun, may_end, ended = threading.Event(), threading.Event(), []

    def slow(*operands):
        begun.set()
        assert may_end.wait(120)
        ended.append(True)
        return 1

    async def use():
        copying = asyncio.ensure_future(client.copy(0, 1, 5))
        await asyncio.to_thread(begun.wait, 120)
        for _ in range(3):
            copying.cancel()
            await asyncio.sleep(0)
        assert not copying.done()
        may_end.set()
        await asyncio.wait({copying})
        return copying.cancelled(), list(ended)

    monkeypatch.setattr(os, "sendfile", slow)
    assert asyncio.run(use()) == (True, [True])


def test_a_file_that_becomes_shorter_is_an_error_and_no_short_file(home):
    (home / "files/name").write_bytes(b"x" * 100)

    async def use(agent, files):
        async with files.to_read("box", "name") as opened:
            os.truncate(home / "files/name", 10)
            with pytest.raises(OSError, match="became shorter"):
                await client.content(*opened)

    run(home, use)


@pytest.mark.parametrize("line", [b"no json\n", b"[1]\n", b"x" * (1 << 17), b'{"read": 1}\n'])
def test_a_client_that_says_something_else_ends_its_own_connection_only(home, line):
    (home / "files/name").write_bytes(b"here")

    async def use(agent, files):
        assert await files.works()
        loop, connection = asyncio.get_running_loop(), files._idle.pop()[1]
        await loop.sock_sendall(connection, line)
        said = await loop.sock_recv(connection, 4096)
        assert said == b"" or json.loads(said)["status"] in (400, 410)
        connection.close()
        return await read(files, "name")

    assert run(home, use) == b"here"


@pytest.mark.parametrize(
    "line",
    [
        b'{"read": "box", "path": 5}\n',
        b'{"write": "box", "path": ["a"]}\n',
        b'{"write": "box", "path": "a", "mode": []}\n',
        b"[" * (1 << 14) + b"\n",
    ],
    ids=["number", "list", "mode", "deep"],
)
def test_what_is_no_request_is_no_fault_of_the_agents(home, line, caplog):
    async def use(agent, files):
        assert await files.works()
        loop, connection = asyncio.get_running_loop(), files._idle.pop()[1]
        await loop.sock_sendall(connection, line)
        said = await loop.sock_recv(connection, 4096)
        connection.close()
        return said == b"" or json.loads(said)["status"] == 400

    assert run(home, use)
    assert caplog.records == []


def test_a_connection_that_ended_is_not_ended_again_later(home, monkeypatch):
    monkeypatch.setattr(handover, "IDLE_SECONDS", 0.05)
    faults = []

    async def use(agent, files):
        assert await files.works()
        loop, connection = asyncio.get_running_loop(), files._idle.pop()[1]
        loop.set_exception_handler(lambda _, fault: faults.append(fault))
        await loop.sock_sendall(connection, b"no json\n")
        assert await loop.sock_recv(connection, 1) == b""
        connection.close()
        await asyncio.sleep(0.1)  # what was to be done after 0.05 s comes before

    run(home, use)
    assert faults == []


def test_no_descriptor_stays_open_on_either_side(home):
    async def use(agent, files):
        await written(files, "name", b"1")
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            await written(files, "name", b"1")
            await read(files, "name")
            with pytest.raises(OSError):
                await read(files, "missing")
        while len(os.listdir("/proc/self/fd")) > before:  # the last refused one is being closed
            await asyncio.sleep(0.01)

    run(home, use)


def test_over_tcp_nothing_is_handed_over(home):
    async def use():
        runner = web.AppRunner(server.make_app(FakeAgent(home)))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(f"http://127.0.0.1:{port}/v1/files") as response,
        ):
            said = response.status, await response.json()
        await runner.cleanup()
        return said

    status, said = asyncio.run(use())
    assert status == 400 and "Unix socket only" in said["problem"]


def test_an_agent_that_does_not_know_how_is_asked_over_http(home):
    async def use():
        runner = web.AppRunner(web.Application())
        await runner.setup()
        await web.UnixSite(runner, f"{home}/socket").start()
        works = await Handover(f"{home}/socket", TOKEN).works()
        await runner.cleanup()
        return works

    assert asyncio.run(use()) is False


def test_an_agent_that_is_gone_is_a_lost_connection(home):
    with pytest.raises(ConnectionError):
        asyncio.run(Handover(f"{home}/nothing", TOKEN).works())
