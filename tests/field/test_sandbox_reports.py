"""Inputs that broke other people's sandboxes; each test names the report and what is right."""

import asyncio
import time

import pytest
from pbox_agent import RunningCommand, left_behind

from miles_periodic.plugins.pbox import (
    Exited,
    InfrastructureFailure,
    Limits,
    OutOfMemory,
    TimedOut,
    connect,
)

pytestmark = pytest.mark.real
MIB = 1 << 20
#: Enough for a command to start and write on a busy machine.
SOON = 3.0
#: Far more than it takes, far less than what was reported.
LATE = 60.0
FILL = "held = []\nwhile True: held.append(bytearray(b'x' * (1 << 20)))"


@pytest.fixture(scope="module")
def running(sandbox_agent):
    return sandbox_agent


@pytest.fixture(scope="module")
def host(sandbox_host):
    return sandbox_host


def test_verifiers_1245_a_wait_on_a_dying_sandbox_is_bounded(host):
    """The sandbox's time ended before the scoring did, whose polls then hung for an hour."""
    box = host.start()
    scoring = RunningCommand(box, ["sh", "-c", "echo up; sleep 3600"], timeout_seconds=3600)
    box.close()
    scoring.join(LATE)
    assert isinstance(scoring.end, InfrastructureFailure)


def test_open_instruct_1887_infrastructure_death_is_no_outcome_of_the_task(host):
    """Deaths of the infrastructure were scored 0: 5 to 15 % of the episodes of a run."""
    from miles_periodic.plugins.pbox.outcomes import OUTCOMES

    box = host.start()
    box.close()
    with pytest.raises(InfrastructureFailure):
        box.exec(["true"])
    assert not any(issubclass(InfrastructureFailure, kind) for kind in OUTCOMES.values())


def test_verl_3478_a_busy_loop_ends_at_its_time(host):
    """A loop that never yields defeats a time limit of the same event loop."""
    with host.sandbox() as box:
        code = "import signal\nsignal.signal(15, signal.SIG_IGN)\nwhile True: pass"
        result = box.exec(["python3", "-c", code], timeout_seconds=0.5)
    assert (result.outcome, result.seconds < LATE) == (TimedOut(0.5), True)


def test_verl_2105_one_programs_memory_is_its_own_end(host):
    """One program's memory killed its neighbours; it is a result, not an outage."""
    with host.sandbox() as neighbour, host.sandbox(limits=Limits(memory_bytes=96 * MIB)) as greedy:
        filled = greedy.exec(["python3", "-c", FILL], timeout_seconds=300)
        assert filled.outcome == OutOfMemory(96 * MIB)
        assert neighbour.exec(["echo", "alive"]).ok


def test_gvisor_13777_a_limit_is_proved_by_running_into_it(host):
    """Limits were silently not enforced: 1.675 CPUs used under a limit of 0.66."""
    proofs = {proof["limit"]: proof["holds"] for proof in host.node()["proofs"]}
    wanted = {"memory", "processes", "cpu-time", "disk", "files", "scratch", "network"}
    assert wanted <= set(proofs) and all(proofs.values())


def test_gvisor_12091_destroying_a_busy_sandbox_is_bounded(running, host):
    """`runsc delete` blocked for two minutes, with "gofer is still running"."""
    box = host.start()
    code = "import os\nfor _ in range(6):\n if os.fork() == 0: break\nprint(1, flush=True)\n"
    busy = RunningCommand(box, ["python3", "-c", code + "while True: pass"], timeout_seconds=600)
    started = time.monotonic()
    box.close()
    assert time.monotonic() - started < LATE
    assert box.name not in left_behind(running.folder)["groups"]
    busy.join(LATE)
    assert isinstance(busy.end, InfrastructureFailure)


def test_ray_64964_the_environment_of_a_command_is_not_runscs(host):
    """An empty environment for the command reached runsc itself, which then had no PATH."""
    with host.sandbox() as box:
        assert box.exec(["/bin/sh", "-c", "exit 0"], environment={"PATH": ""}).ok


def test_agentscope_java_2923_an_upload_is_no_argument(host):
    """Uploads as base64 words of a command ended at 768 KB."""
    with host.sandbox() as box:
        box.write_bytes("data", b"\xff" * (5 * MIB))
        assert box.exec(["sh", "-c", "wc -c < data"]).stdout == b"5242880\n"


def test_beta9_1886_a_failed_upload_leaves_the_file(host):
    """A small upload that failed had truncated its target first."""
    with host.sandbox(limits=Limits(disk_bytes=2 * MIB)) as box:
        box.write_text("target", "before")
        with pytest.raises(OSError):
            box.write_bytes("target", b"x" * (4 * MIB))
        assert box.read_text("target") == "before"


def test_dify_41042_the_outer_time_limit_is_above_the_inner_one(host):
    """An outer limit of 60 seconds over an inner one of 120 lost the inner one's answer."""
    from miles_periodic.plugins.pbox.client import box as client

    assert client.GRACE_SECONDS > 0
    with host.sandbox() as box:
        assert box.exec(["sleep", "9"], timeout_seconds=1).outcome == TimedOut(1)


def test_langalpha_201_a_retry_holds_the_whole_deadline(tmp_path):
    """The deadline was looked at between tries only: a try that hung took 17 minutes."""
    import socket

    async def attempt():
        async with connect(f"unix:{tmp_path}/silent", token="x" * 43, timeout_seconds=1.0):
            pass

    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{tmp_path}/silent")
        silent.listen()
        started = time.monotonic()
        with pytest.raises(InfrastructureFailure):
            asyncio.run(attempt())
    assert time.monotonic() - started < LATE


def test_swe_rex_151_a_command_out_of_time_keeps_its_output_and_the_session(host):
    """The output of a command that ran out of time was lost, and then the session was dead."""
    with host.sandbox() as box:
        for number in range(2):
            words = ["sh", "-c", f"echo part {number}; sleep 600"]
            result = box.exec(words, timeout_seconds=SOON)
            assert (result.outcome, result.stdout) == (TimedOut(SOON), f"part {number}\n".encode())
        assert box.exec(["true"]).outcome == Exited(0)
