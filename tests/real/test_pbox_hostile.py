"""Fifteen things that hostile code does first, each contained, and all of them at once."""

import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pbox_agent import agent, left_behind
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
def running(tmp_path_factory):
    base_image()
    with agent(tmp_path_factory.mktemp("hostile"), "--cpus", str(SANDBOX_CPU)) as started:
        yield started


@pytest.fixture(scope="module")
def host(running):
    with running.connect() as connected:
        yield connected


@pytest.fixture
def box(host):
    with host.sandbox(limits=LIMITS) as made:
        yield made


def run(box, code, **options):
    return box.exec(["python3", "-c", code], **{"timeout_seconds": 20, **options})


FORK_BOMB = "import os\nwhile True:\n try: os.fork()\n except OSError: pass"
MEMORY_BOMB = "held = []\nwhile True: held.append(bytearray(b'x' * (1 << 20)))"
DISK_FILL = """
import os
for folder in ("/work", "/tmp", "/dev/shm", "/var/tmp", "/dev", "/root", "/"):
    total = 0
    try:
        with open(folder + "/fill", "wb", buffering=0) as file:
            while True: total += file.write(bytes(65536))
    except OSError as error:
        print(folder, total, error.errno)
"""
HUGE_OUTPUT = "import os\nwhile True: os.write(1, b'x' * 65536)"
STUBBORN = """
import os, signal, time
for number in (1, 2, 3, 15): signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: time.sleep(1000)
    os._exit(0)
time.sleep(1000)
"""


def test_a_fork_bomb_meets_its_process_limit(box):
    outcome = run(box, FORK_BOMB).outcome
    assert outcome in (Killed(9, by="num_processes"), OutOfMemory(256 * MIB), TimedOut(20))


def test_a_memory_bomb_meets_its_memory_limit(running, box):
    assert run(box, MEMORY_BOMB).outcome == OutOfMemory(256 * MIB)


def test_a_reservation_far_beyond_the_machine_is_bounded_when_it_is_used(box):
    code = "x = bytearray(80 << 30)\nfor i in range(0, len(x), 4096): x[i] = 1"
    assert run(box, code).outcome in (OutOfMemory(256 * MIB), Exited(1))


def test_filling_the_disk_ends_at_its_size_everywhere(box):
    lines = [line.split() for line in run(box, DISK_FILL).stdout.decode().splitlines()]
    written = {folder: int(total) for folder, total, _ in lines}
    assert len(written) == 7
    assert max(written.values()) <= LIMITS.disk_bytes
    assert max(written["/tmp"], written["/dev/shm"]) <= LIMITS.scratch_bytes


def test_making_files_without_end_ends_at_their_number(box):
    code = (
        "n = 0\ntry:\n while True:\n  open(f'/work/{n}', 'w').close(); n += 1\n"
        "except OSError as error: print(n, error.errno)"
    )
    number, errno = run(box, code).stdout.split()
    assert (int(number) <= LIMITS.num_files, errno) == (True, b"28")


def test_the_nodes_files_memory_and_processes_cannot_be_read(box):
    paths = ("/proc/kcore", "/proc/kallsyms", "/proc/sysrq-trigger", "/dev/mem", "/dev/kmsg",
             "/sys/kernel/debug", "/proc/1/mem", "/etc/shadow")  # fmt: skip
    code = (
        "import os, sys\n"
        "for path in sys.argv[1:]:\n"
        " try: data = open(path, 'rb').read(64)\n"
        " except OSError: data = b''\n"
        " print(path, len(data))\n"
        "print('pids', *sorted(int(p) for p in os.listdir('/proc') if p.isdigit()))"
    )
    text = box.exec(["python3", "-c", code, *paths], timeout_seconds=20).stdout.decode()
    *readings, pids = text.splitlines()
    assert readings == [f"{path} 0" for path in paths]
    assert all(int(pid) < 100 for pid in pids.split()[1:])


def test_process_ones_environment_holds_nothing_of_the_agents(box):
    code = "print(open('/proc/1/environ').read().replace(chr(0), ' '))"
    names = {word.partition("=")[0] for word in run(box, code).stdout.decode().split()}
    assert names == set(ENVIRONMENT)


def test_no_address_of_the_node_can_be_reached(box):
    code = (
        "import socket, sys\n"
        "print([name for _, name in socket.if_nameindex()])\n"
        "def attempt(kind, address):\n"
        " with socket.socket(*kind) as s:\n"
        "  s.settimeout(2)\n"
        "  try: s.connect(address); print('connected', address)\n"
        "  except OSError: pass\n"
        "attempt((socket.AF_INET, socket.SOCK_STREAM), ('127.0.0.1', int(sys.argv[1])))\n"
        "attempt((socket.AF_UNIX, socket.SOCK_STREAM), '\\0' + sys.argv[2])\n"
        "try: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); print('raw')\n"
        "except OSError: pass\n"
    )
    name = f"pbox-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(f"\0{name}")
        unix.listen()
        words = ["python3", "-c", code, str(tcp.getsockname()[1]), name]
        assert box.exec(words, timeout_seconds=20).stdout == b"['lo']\n"


def test_privileges_cannot_be_had(box):
    code = (
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None)\n"
        "def attempt(name, call):\n"
        " try: done = call()\n"
        " except OSError: done = -1\n"
        " if done != -1: print(name)\n"
        "attempt('setuid', lambda: os.setuid(0) or 0)\n"
        "attempt('setgroups', lambda: os.setgroups([0]) or 0)\n"
        "attempt('mknod', lambda: os.mknod('/work/d', 0o60600, os.makedev(254, 0)) or 0)\n"
        "attempt('mount', lambda: libc.mount(b'x', b'/work', b'tmpfs', 0, b''))\n"
        "attempt('chroot', lambda: os.chroot('/work') or 0)\n"
        "attempt('hostname', lambda: libc.sethostname(b'x', 1))\n"
    )
    assert run(box, code).stdout == b""


def test_process_one_cannot_be_traced_or_signalled(box):
    code = (
        "import ctypes, os\n"
        "print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))\n"
        "for number in (9, 15, 19):\n"
        " try: os.kill(1, number); print('sent')\n"
        " except PermissionError: pass\n"
    )
    assert run(box, code).stdout == b"-1\n"
    assert box.exec(["echo", "alive"]).ok


def test_dangerous_calls_are_not_there(box):
    numbers = {"bpf": 321, "init_module": 175, "kexec_load": 246, "iopl": 172, "swapon": 167,
               "settimeofday": 164, "userfaultfd": 323, "perf_event_open": 298,
               "add_key": 248, "reboot": 169}  # fmt: skip
    code = (
        "import ctypes, sys\n"
        "libc = ctypes.CDLL(None)\n"
        "for number in sys.argv[1:]:\n"
        " if libc.syscall(int(number), 0, 0, 0, 0, 0) >= 0: print(number)\n"
    )
    words = ["python3", "-c", code, *map(str, numbers.values())]
    assert box.exec(words, timeout_seconds=20).stdout == b""


def test_no_process_of_the_node_can_be_signalled(box):
    code = (
        "import os\nseen = []\n"
        "for pid in range(2, 33000):\n"
        " if pid == os.getpid(): continue\n"
        " try: os.kill(pid, 0); seen.append(pid)\n"
        " except ProcessLookupError: pass\n"
        " except PermissionError: seen.append(pid)\n"
        "print(max(seen, default=0) < 100)"
    )
    assert run(box, code, timeout_seconds=60).stdout == b"True\n"


def test_busy_loops_stay_on_the_sandboxes_cpus(running, box):
    code = "import os\nfor _ in range(7):\n if os.fork() == 0: break\nwhile True: pass"
    burning = threading.Thread(target=run, args=(box, code), kwargs={"timeout_seconds": 1.5})
    burning.start()
    time.sleep(0.7)
    allowed = {
        line.split()[1]
        for pid in left_behind(running.folder)["processes"]
        if Path(f"/proc/{pid}/status").exists()
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("Cpus_allowed_list")
    }
    burning.join(30)
    assert allowed == {str(SANDBOX_CPU)}


def test_open_files_end_at_their_number(box):
    code = (
        "import os\nheld = []\n"
        "try:\n while True: held.append(os.open('/work', os.O_RDONLY))\n"
        "except OSError as error: print(len(held), error.errno)"
    )
    number, errno = run(box, code).stdout.split()
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
            hostile.exec(["python3", "-c", code], user=0, timeout_seconds=10)
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


def test_all_at_once_contain_themselves_beside_a_busy_trainer(running, host):
    payloads = [FORK_BOMB, MEMORY_BOMB, DISK_FILL, HUGE_OUTPUT, STUBBORN, "while True: pass"]
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, str(TRAINER_CPU)], stdout=subprocess.PIPE
    )
    try:
        trainer.stdout.readline()
        boxes = [host.start(limits=LIMITS) for _ in payloads]
        with ThreadPoolExecutor(len(payloads)) as pool:
            ends = list(pool.map(lambda box, code: run(box, code, timeout_seconds=5),
                                 boxes, payloads))  # fmt: skip
        assert all(end.outcome for end in ends)
        assert trainer.poll() is None
        for box in boxes:
            box.close()
        assert not any(left_behind(running.folder).values())
        assert host.node()["num_sandboxes"] == 0
    finally:
        trainer.kill()
        trainer.wait()
        trainer.stdout.close()


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
    monkeypatch.setattr(proof, "TIMEOUT_SECONDS", 3.0)
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
