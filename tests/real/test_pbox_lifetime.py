"""Whatever ends a job or an agent, nothing of a sandbox is left."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pbox_agent
import pytest
from becoming import becomes
from pbox_agent import PLATFORM, RunningCommand, agent_command, left_behind, nothing_is_left
from pbox_image import base_image

from miles_periodic.plugins.pbox import InfrastructureFailure
from miles_periodic.plugins.pbox.node.cgroups import find
from miles_periodic.plugins.pbox.node.orphans import zombie_children
from miles_periodic.plugins.pbox.node.sweep import sweep_abandoned

pytestmark = pytest.mark.real
HERE = Path(__file__).parent
GONE_SECONDS = 60  # far more than it takes: how long is `miles bench pbox`'s to say
HEARTBEAT_SECONDS = 6.0  # half of it must be enough for an answer on a busy machine
NUM_CYCLES = 50
#: Limits are proved where they are what is tested.
agent = partial(pbox_agent.agent, is_proved=False)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    base_image()
    folder = tmp_path_factory.mktemp("lifetime")
    with agent(folder, "--heartbeat-seconds", str(HEARTBEAT_SECONDS)) as started:
        yield started


@pytest.fixture(scope="module")
def warmed(tmp_path_factory):
    base_image()
    with agent(tmp_path_factory.mktemp("warmed"), "--warm", "base=1") as started:
        yield started


@contextlib.contextmanager
def job(running, address="", num_sandboxes=2):
    """A process of a job with sandboxes in which commands run."""
    process = subprocess.Popen(
        [sys.executable, HERE / "pbox_client.py", address or running.address,
         running.token_file, str(num_sandboxes)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        readable, _, _ = select.select([process.stdout], [], [], 180)
        assert readable and process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_job_that_is_killed_leaves_nothing(running):
    with job(running) as process:
        assert len(left_behind(running.folder)["groups"]) == 2
        process.kill()
        nothing_is_left(running.folder, GONE_SECONDS)


def test_a_job_that_is_told_to_stop_leaves_nothing(running):
    with job(running) as process:
        process.terminate()
        nothing_is_left(running.folder, GONE_SECONDS)


def test_a_job_that_gives_no_sign_of_life_is_destroyed_within_its_heartbeats(running):
    with job(running) as process:
        process.send_signal(signal.SIGSTOP)
        nothing_is_left(running.folder, GONE_SECONDS)


def test_a_job_that_waits_for_long_is_not_destroyed(running):
    with running.connect() as host, host.sandbox() as box:
        time.sleep(2 * HEARTBEAT_SECONDS)  # One that gives no sign is gone after one and a half.
        assert box.exec(["true"]).ok


def test_one_jobs_end_is_not_anothers(running):
    with running.connect() as host, host.sandbox() as box:
        with job(running, num_sandboxes=1) as process:
            process.kill()
            process.wait()
        becomes(lambda: len(left_behind(running.folder)["groups"]) <= 1)
        assert left_behind(running.folder)["groups"] == [box.name]
        assert box.exec(["true"]).ok


def test_a_connection_that_breaks_without_an_end_is_noticed(tmp_path):
    """A network that drops everything tells neither side: only heartbeats do."""
    options = ("--heartbeat-seconds", str(HEARTBEAT_SECONDS))
    with (
        agent(tmp_path / "tcp", *options, listen="127.0.0.1:0") as running,
        relay(int(running.address.rpartition(":")[2])) as (port, freeze),
        job(running, f"http://127.0.0.1:{port}", 1),
    ):
        freeze.set()
        nothing_is_left(running.folder, GONE_SECONDS)


@contextlib.contextmanager
def relay(port):
    """A way between client and agent that can stop to carry anything, and stay open."""
    freeze, stop = threading.Event(), threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.1)
    ends = []

    def carry(source, sink):
        with contextlib.suppress(OSError):
            while not stop.is_set():
                readable, _, _ = select.select([source], [], [], 0.1)
                if freeze.is_set() or not readable:
                    continue
                data = source.recv(65536)
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)

    def accept():
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                near = listener.accept()[0]
                far = socket.create_connection(("127.0.0.1", port))
                ends.extend((near, far))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=carry, args=pair, daemon=True).start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield listener.getsockname()[1], freeze
    finally:
        stop.set()
        accepting.join()
        for end in (*ends, listener):
            end.close()


def test_an_agent_that_is_killed_leaves_nothing_and_its_client_is_told(tmp_path):
    with agent(tmp_path / "killed", "--warm", "base=1") as running, running.connect() as host:
        box = host.start()
        waiting = RunningCommand(box, ["sh", "-c", "echo up; sleep 600"], timeout_seconds=600)
        running.process.kill()
        nothing_is_left(running.folder, GONE_SECONDS)
        waiting.join(GONE_SECONDS)
        assert isinstance(waiting.end, InfrastructureFailure)
        with pytest.raises(InfrastructureFailure):
            host.start()


def test_an_agent_sweeps_what_one_before_it_left(tmp_path):
    """Killed together with its undertaker, as by Slurm: only the next agent can sweep."""
    folder = tmp_path / "swept"
    with agent(folder) as running, running.connect() as host:
        host.start()
        os.kill(undertaker_of(folder), signal.SIGKILL)
        running.process.kill()
        running.process.wait()
        assert left_behind(folder)["mounts"]
        with agent(folder) as next_one:
            assert "swept 1 sandboxes" in next_one.log()
            assert not any(left_behind(folder).values())


def test_a_place_whose_agent_and_undertaker_were_killed_is_swept_by_whoever_comes(tmp_path):
    """As `miles pbox up` does before it starts an agent; a place with an agent is left alone."""
    places, name = tmp_path / "places", f"test-{os.getpid()}-abandoned"
    places.mkdir()
    with agent(places / name, "--cgroup", f"pbox-{name}") as running, running.connect() as host:
        host.start()
        assert sweep_abandoned(places, "runsc", PLATFORM) == []
        os.kill(undertaker_of(places / name), signal.SIGKILL)
        running.process.kill()
        running.process.wait()
        assert sweep_abandoned(places, "runsc", PLATFORM) == [name]
        assert str(places) not in Path("/proc/self/mountinfo").read_text()
        assert find(f"pbox-{name}").existing() == {}


def undertaker_of(folder):
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if b"miles_periodic.plugins.pbox.node.undertaker" in words and (
                f"{folder}/state".encode() in words
            ):
                return int(path.parent.name)
    raise AssertionError("no undertaker runs")


def test_an_agent_that_is_told_to_stop_destroys_everything_and_exits_well(tmp_path):
    with agent(tmp_path / "stopped", "--warm", "base=2") as running:
        with running.connect() as host:
            host.start()
            assert running.stop() == 0
            nothing_is_left(running.folder, GONE_SECONDS)
        assert becomes(lambda: not running.state.exists())


def test_a_second_agent_of_the_same_folder_is_refused(running):
    command = agent_command(running.folder, listen=f"unix:{running.folder}/second")
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert (done.returncode, "Another agent uses" in done.stderr) == (2, True)


def test_a_warm_sandbox_that_died_is_not_handed_out(warmed):
    with warmed.connect() as host:
        wait_for_warm(host, 1)
        victim = left_behind(warmed.folder)
        for pid in victim["processes"]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with host.sandbox() as box:
            assert box.name not in victim["groups"]
            assert box.exec(["true"]).ok


def test_a_sandbox_is_used_once(warmed):
    with warmed.connect() as host:
        names = set()
        for _ in range(4):
            wait_for_warm(host, 1)
            with host.sandbox() as box:
                names.add(box.name)
                assert box.exec(["sh", "-c", "ls -A /work; touch /work/used"]).stdout == b""
        assert len(names) == 4


def wait_for_warm(host, number):
    assert becomes(lambda: host.node()["warm"]["base"] >= number)


def test_many_sandboxes_come_and_go_and_leave_nothing(running):
    with running.connect() as host, ThreadPoolExecutor(4) as clients:

        def cycle(_):
            with host.sandbox() as box:
                assert box.exec(["sh", "-c", "(setsid sleep 60 &); sleep 60 & true"]).ok

        list(clients.map(cycle, range(NUM_CYCLES)))
        assert not any(left_behind(running.folder).values())
    assert len(os.listdir(f"/proc/{running.process.pid}/fd")) < 40
    assert becomes(lambda: not zombie_children(running.process.pid))
