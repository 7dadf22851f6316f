"""Fifteen things that hostile code does first, each contained, and all of them at once."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hostile_payloads import (
    ALL,
    CPU_HOG,
    DISK_FILL,
    FORK_BOMB,
    HUGE_OUTPUT,
    KERNEL_CALLS,
    MANY_FILES,
    MEMORY_BOMB,
    NETWORK,
    OPEN_FILES,
    PRIVILEGES,
    READ_SECRETS,
    RESERVATION,
    SECRETS,
    SIGNAL_EVERYBODY,
    STUBBORN,
    TRACE_PROCESS_ONE,
)
from pbox_agent import RunningCommand, left_behind
from pbox_image import base_image

from miles_periodic.plugins.pbox import (
    Exited,
    Killed,
    Limits,
    OutOfMemory,
    OutputTruncated,
    TimedOut,
)
from miles_periodic.plugins.pbox.node.bundle import ENVIRONMENT
from miles_periodic.plugins.pbox.node.cgroups import find

pytestmark = pytest.mark.real
MIB = 1 << 20
LIMITS = Limits(
    memory_bytes=256 * MIB,
    num_processes=256,
    num_cpus=1.0,
    disk_bytes=16 * MIB,
    num_files=2000,
    scratch_bytes=8 * MIB,
    num_open_files=256,
)
#: The sandboxes' own CPU, where there is one to spare for it.
SANDBOX_CPU, TRAINER_CPU = sorted(os.sched_getaffinity(0))[-1], min(os.sched_getaffinity(0))


@pytest.fixture(scope="module")
def running(sandbox_agent):
    return sandbox_agent


@pytest.fixture(scope="module")
def host(sandbox_host):
    return sandbox_host


@pytest.fixture
def box(host):
    with host.sandbox(limits=LIMITS) as made:
        yield made


def run(box, code, *arguments, **options):
    return box.exec(["python3", "-c", code, *arguments], **{"timeout_seconds": 300, **options})


def test_a_fork_bomb_meets_its_process_limit(box):
    outcome = run(box, FORK_BOMB, timeout_seconds=10).outcome
    assert outcome in (Killed(9, by="num_processes"), OutOfMemory(256 * MIB), TimedOut(10))


def test_a_memory_bomb_meets_its_memory_limit(running, box):
    assert run(box, MEMORY_BOMB).outcome == OutOfMemory(256 * MIB)


def test_a_reservation_far_beyond_the_machine_is_bounded_when_it_is_used(box):
    assert run(box, RESERVATION).outcome in (OutOfMemory(256 * MIB), Exited(1))


def test_filling_the_disk_ends_at_its_size_everywhere(box):
    lines = [line.split() for line in run(box, DISK_FILL).stdout.decode().splitlines()]
    written = {folder: int(total) for folder, total, _ in lines}
    assert len(written) == 7
    assert max(written.values()) <= LIMITS.disk_bytes
    assert max(written["/tmp"], written["/dev/shm"]) <= LIMITS.scratch_bytes


def test_making_files_without_end_ends_at_their_number(box):
    number, errno = run(box, MANY_FILES).stdout.split()
    assert (int(number) <= LIMITS.num_files, errno) == (True, b"28")


def test_the_nodes_files_memory_and_processes_cannot_be_read(box):
    text = run(box, READ_SECRETS).stdout.decode()
    *readings, pids = text.splitlines()
    assert readings == [f"{path} 0" for path in SECRETS]
    assert all(int(pid) < 100 for pid in pids.split()[1:])


def test_process_ones_environment_holds_nothing_of_the_agents(box):
    code = "print(open('/proc/1/environ').read().replace(chr(0), ' '))"
    names = {word.partition("=")[0] for word in run(box, code).stdout.decode().split()}
    assert names == set(ENVIRONMENT)


def test_no_address_of_the_node_can_be_reached(box):
    name = f"pbox-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(f"\0{name}")
        unix.listen()
        said = run(box, NETWORK, str(tcp.getsockname()[1]), name).stdout
    assert said == b"['lo']\n"


def test_privileges_cannot_be_had(box):
    assert run(box, PRIVILEGES).stdout == b""


def test_process_one_cannot_be_traced_or_signalled(box):
    assert run(box, TRACE_PROCESS_ONE).stdout == b"-1\n"
    assert box.exec(["echo", "alive"]).ok


def test_dangerous_calls_are_not_there(box):
    assert run(box, KERNEL_CALLS).stdout == b""


def test_no_process_of_the_node_can_be_signalled(box):
    assert run(box, SIGNAL_EVERYBODY).stdout == b"True\n"


def test_busy_loops_stay_on_the_sandboxes_cpus(running, box):
    words = ["python3", "-c", "print('up', flush=True)\n" + CPU_HOG]
    burning = RunningCommand(box, words, timeout_seconds=3)
    allowed = cpus_of_sandboxes(running)
    burning.join()
    assert allowed == {str(SANDBOX_CPU)}


def cpus_of_sandboxes(running):
    """The lists of CPUs on which the sandboxes' processes may run now."""
    allowed = set()
    for pid in left_behind(running.folder)["processes"]:
        with contextlib.suppress(OSError):  # one that ended meanwhile
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            allowed |= {line.split()[1] for line in lines if line.startswith("Cpus_allowed_list")}
    return allowed


def test_open_files_end_at_their_number(box):
    number, errno = run(box, OPEN_FILES).stdout.split()
    assert (int(number) <= LIMITS.num_open_files, errno) == (True, b"24")


def test_output_without_end_is_cut_and_its_writer_is_gone(box):
    outcome = run(box, HUGE_OUTPUT, output_limit_bytes=MIB).outcome
    assert outcome == OutputTruncated(MIB)
    assert int(box.exec(["sh", "-c", "ps -o comm | grep -c python3"]).stdout) <= 2


def test_a_process_that_ignores_signals_and_leaves_its_session_ends_with_its_time(box):
    assert run(box, STUBBORN, timeout_seconds=1).outcome == TimedOut(1)
    assert int(box.exec(["sh", "-c", "ps -o comm | grep -c python3"]).stdout) <= 2


def test_a_program_that_writes_to_process_one_ends_only_its_own_sandbox(host, box):
    """As root it can reach the agent's pipe: what it says there is not believed."""
    with host.sandbox(limits=LIMITS) as hostile:
        code = "import glob\nfor fd in glob.glob('/proc/1/fd/*'):\n" \
               " try: open(fd, 'wb', buffering=0).write(b'q' + b'\\xff' * 64)\n" \
               " except OSError: pass"  # fmt: skip
        try:
            hostile.exec(["python3", "-c", code], user=0, timeout_seconds=60)
        except Exception as error:
            assert type(error).__name__ == "InfrastructureFailure"
    assert box.exec(["echo", "alive"]).ok


TRAINER = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
print("ready", flush=True)
end = time.monotonic() + 600
while time.monotonic() < end: pass
"""


@pytest.fixture
def trainer():
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINER, str(TRAINER_CPU)], stdout=subprocess.PIPE
    )
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_all_at_once_contain_themselves_beside_a_busy_trainer(running, host, trainer):
    with ThreadPoolExecutor(len(ALL)) as pool, host.sandbox(limits=LIMITS) as neighbour:
        boxes = list(pool.map(lambda _: host.start(limits=LIMITS), ALL))
        ends = [
            pool.submit(run, box, *payload, timeout_seconds=4)
            for box, payload in zip(boxes, ALL.values(), strict=True)
        ]
        time.sleep(1)
        allowed = cpus_of_sandboxes(running)
        assert all(end.result().outcome for end in ends)
        assert neighbour.exec(["echo", "alive"]).ok
        list(pool.map(lambda box: box.close(), boxes))
    assert trainer.poll() is None
    assert allowed == {str(SANDBOX_CPU)}
    left = left_behind(running.folder)
    assert {box.name for box in boxes}.isdisjoint([*left["groups"], *left["files"]])


def test_a_limit_that_is_not_enforced_stops_the_agent_by_name(tmp_path, monkeypatch):
    import asyncio

    from pbox_agent import PLATFORM

    from miles_periodic.hooks.errors import PeriodicError
    from miles_periodic.plugins.pbox.node import cgroups_v1, cgroups_v2, place, proof

    for kind in (cgroups_v1.CgroupV1, cgroups_v2.CgroupV2):
        monkeypatch.setattr(kind, "apply", lambda self, limits: None)
    group = f"pbox-test-{os.getpid()}-unenforced"
    lock = place.take(tmp_path / "state")
    node = place.place_of(tmp_path / "state", "runsc", PLATFORM, group)
    monkeypatch.setattr(proof, "_FILL_MEMORY", "x = bytearray(b'x' * (200 << 20))")
    monkeypatch.setattr(proof, "_FORK", "import os, time\nfor _ in range(99):\n"
                        " if os.fork() == 0: time.sleep(2); os._exit(0)")  # fmt: skip
    try:
        node.cgroups.prepare("", None)
        proofs = asyncio.run(proof.prove(node, base_image().as_image("base"), ""))
        with pytest.raises(PeriodicError) as refused:
            proof.refuse_unproved(proofs)
        assert "memory, processes, cpu-time." in refused.value.problem
        proof.refuse_unproved(proofs, frozenset({"memory", "processes", "cpu-time"}))
    finally:
        place.remove_place(tmp_path / "state", node)
        os.close(lock)
    assert find(group).existing() == {}
