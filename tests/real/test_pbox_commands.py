"""What a command can come to, in real sandboxes under a real agent."""

import threading

import pytest
from becoming import becomes
from pbox_agent import RunningCommand

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox import (
    Exited,
    InfrastructureFailure,
    Killed,
    Limits,
    OutOfMemory,
    OutputTruncated,
    SandboxGone,
    TimedOut,
    connect_blocking,
)

pytestmark = pytest.mark.real
MIB = 1 << 20
#: Enough for a command to start and write on a busy machine.
SOON = 3.0
#: For what ends by itself, however busy the machine is.
LATE = 300.0
FILL = "held = []\nwhile True: held.append(bytearray(b'x' * (1 << 20)))"


@pytest.fixture(scope="module")
def running(sandbox_agent):
    return sandbox_agent


@pytest.fixture(scope="module")
def host(sandbox_host):
    return sandbox_host


@pytest.fixture(scope="module")
def shared(host):
    """One sandbox for the tests that leave it as it was."""
    with host.sandbox() as box:
        yield box


@pytest.fixture
def box(host):
    with host.sandbox() as made:
        yield made


def shell(box, text, **options):
    return box.exec(["sh", "-c", text], **options)


def test_a_command_exits_with_its_own_status_and_both_streams(shared):
    result = shell(shared, "echo out; echo err >&2; exit 7")
    assert (result.outcome, result.stdout, result.stderr) == (Exited(7), b"out\n", b"err\n")


def test_a_command_reads_its_input_to_the_end(shared):
    data = bytes(range(256)) * 8192
    assert shared.exec(["cat"], stdin=data, output_limit_bytes=4 * MIB).stdout == data


def test_input_that_a_command_does_not_read_holds_up_nothing(shared):
    assert shared.exec(["true"], stdin=b"x" * (3 * MIB)).outcome == Exited(0)


def test_words_reach_the_program_as_they_are(shared):
    words = ["printf", "%s|", "a b", "$HOME", "'", "*", "é", ""]
    assert shared.exec(words).stdout.decode() == "a b|$HOME|'|*|é||"


def test_a_command_has_the_environment_and_folder_it_was_given(shared):
    shared.exec(["mkdir", "-p", "inner"])
    result = shell(shared, "pwd; echo $GREETING", environment={"GREETING": "hi"}, folder="inner")
    assert result.stdout == b"/work/inner\nhi\n"


def test_nothing_of_the_agents_environment_reaches_a_command(shared):
    names = {line.split("=")[0] for line in shell(shared, "env").stdout.decode().splitlines()}
    assert names <= {"PATH", "HOME", "LANG", "PYTHONPYCACHEPREFIX", "PWD", "SHLVL", "_"}


def test_a_command_runs_as_a_plain_user_without_capabilities(shared):
    status = shell(shared, "id -u; grep -E 'Cap(Eff|Prm|Inh)' /proc/self/status").stdout.decode()
    assert status.split() == ["1000", *(w for n in ("Inh", "Prm", "Eff") for w in
                                        (f"Cap{n}:", "0" * 16))]  # fmt: skip


def test_a_program_that_is_not_there_is_status_127(shared):
    result = shared.exec(["no-such-program"])
    assert (result.outcome, result.stderr) == (
        Exited(127),
        b"no-such-program: No such file or directory\n",
    )


def test_a_folder_that_is_not_there_is_no_infrastructure_failure(shared):
    assert isinstance(shared.exec(["true"], folder="nowhere").outcome, Exited)


def test_a_signal_is_told_from_a_status(shared):
    assert shell(shared, "kill -SEGV $$").outcome == Killed(11)


def test_a_command_out_of_time_keeps_what_it_wrote_and_the_next_one_works(box):
    result = shell(box, "echo before; sleep 600", timeout_seconds=SOON)
    assert (result.outcome, result.stdout) == (TimedOut(SOON), b"before\n")
    assert box.exec(["echo", "next"]).stdout == b"next\n"


def test_a_command_out_of_time_takes_all_that_it_started_with_it(box):
    escapes = (
        "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 300 & sleep 300' & "
        "(setsid sleep 300 &) ; sleep 300"
    )
    assert isinstance(shell(box, escapes, timeout_seconds=SOON).outcome, TimedOut)
    assert b"sleep" not in shell(box, "ps -o comm").stdout


def test_a_command_that_fills_memory_is_out_of_memory_and_the_sandbox_is_gone(host):
    with host.sandbox(limits=Limits(memory_bytes=128 * MIB)) as box:
        result = box.exec(["python3", "-c", FILL], timeout_seconds=LATE)
        assert (result.outcome, result.sandbox_lives) == (OutOfMemory(128 * MIB), False)
        with pytest.raises(SandboxGone):
            box.exec(["true"])


def test_a_limit_that_a_background_process_reaches_is_the_next_commands_outcome(host):
    limit = 128 * MIB
    with host.sandbox(limits=Limits(memory_bytes=limit)) as box:
        box.write_text("fill.py", FILL)
        shell(box, "python3 fill.py >/dev/null 2>&1 &")
        assert becomes(
            lambda: (
                not [row for row in host.sandboxes() if row["name"] == box.name and row["lives"]]
            )
        )
        result = box.exec(["true"])
        assert (result.outcome, result.sandbox_lives) == (OutOfMemory(limit), False)
        with pytest.raises(SandboxGone):
            box.exec(["true"])


@pytest.mark.parametrize("wrong", [{"words": ["a\0b"]}, {"words": []},
                                   {"words": ["true"], "environment": {"A=B": "c"}},
                                   {"words": ["true"], "folder": "a\0"}])  # fmt: skip
def test_what_cannot_be_a_command_is_the_callers_error_and_no_infrastructure_failure(shared, wrong):
    with pytest.raises(PeriodicError) as refused:
        shared.exec(**wrong)
    assert not isinstance(refused.value, InfrastructureFailure)


def test_one_sandboxs_memory_costs_its_neighbour_nothing(host):
    with host.sandbox() as neighbour, host.sandbox() as greedy:
        filled = greedy.exec(["python3", "-c", FILL], timeout_seconds=LATE)
        assert isinstance(filled.outcome, OutOfMemory)
        assert neighbour.exec(["echo", "here"]).stdout == b"here\n"


def test_a_command_that_writes_too_much_is_cut_and_killed(box):
    result = shell(box, "yes", output_limit_bytes=100_000)
    assert (result.outcome, len(result.stdout)) == (OutputTruncated(100_000), 100_000)
    assert b"yes" not in shell(box, "ps -o comm").stdout


def test_output_as_long_as_its_limit_is_whole(shared):
    result = shell(shared, "head -c 4096 /dev/zero", output_limit_bytes=4096)
    assert (result.outcome, len(result.stdout)) == (Exited(0), 4096)


def test_output_arrives_while_the_command_runs(box):
    waits = "echo first; until test -e go; do sleep 0.05; done; echo second"
    command = RunningCommand(box, ["sh", "-c", waits], timeout_seconds=LATE)
    box.write_text("go", "")
    command.join()
    assert (command.end.outcome, command.end.stdout) == (Exited(0), b"first\nsecond\n")


def test_output_that_is_no_text_arrives_as_it_is(shared):
    code = "import sys; sys.stdout.buffer.write(bytes(range(256)))"
    assert shared.exec(["python3", "-c", code]).stdout == bytes(range(256))


def test_commands_of_one_sandbox_run_side_by_side(box):
    results = []
    threads = [
        threading.Thread(target=lambda n=n: results.append(shell(box, f"sleep 0.3; echo {n}")))
        for n in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(r.stdout for r in results) == [f"{n}\n".encode() for n in range(5)]


def test_a_command_out_of_time_leaves_the_others_alone(box):
    waits = "echo up; until test -e go; do sleep 0.05; done; echo done"
    other = RunningCommand(box, ["sh", "-c", waits], timeout_seconds=LATE)
    assert isinstance(shell(box, "sleep 60", timeout_seconds=0.5).outcome, TimedOut)
    box.write_text("go", "")
    other.join()
    assert other.end.stdout == b"up\ndone\n"


def test_what_a_command_leaves_in_the_background_lives_on(box):
    shell(box, "sleep 300 >/dev/null 2>&1 &")
    # It is a copy of the shell until it has become what it runs.
    assert shell(box, "until ps -o comm | grep -q sleep; do sleep 0.1; done").ok


def test_a_sandbox_destroyed_under_a_command_is_an_infrastructure_failure(running, host):
    box = host.start()
    command = RunningCommand(box, ["sh", "-c", "echo up; sleep 600"], timeout_seconds=600)
    box.close()
    command.join()
    assert isinstance(command.end, InfrastructureFailure)
    assert "destroyed" in command.end.problem


def test_two_sandboxes_share_no_files(host):
    with host.sandbox() as one, host.sandbox() as other:
        shell(one, "echo secret > /work/note; echo secret > /tmp/note; touch /var/tmp/note")
        found = shell(other, "ls /work /tmp /var/tmp").stdout
    assert b"note" not in found


def test_the_shared_image_is_not_changed_by_a_sandbox(host):
    with host.sandbox() as box:
        assert shell(box, "rm -rf /usr/lib/python3.11/json && echo mine > /etc/passwd", user=0).ok
    with host.sandbox() as box:
        assert box.exec(["python3", "-c", "import json; open('/etc/passwd').read()"]).ok


def test_an_image_that_is_not_there_is_refused_by_name(host):
    with pytest.raises(PeriodicError, match="no image 'bsae'"):
        host.start("bsae")


def test_a_job_neither_sees_nor_touches_the_sandboxes_of_another(running, host):
    from miles_periodic.plugins.pbox.agent.tokens import add_job

    token = add_job(running.token_file, "other")
    try:
        with host.sandbox() as box, connect_blocking(running.address, token=token) as other:
            assert other.sandboxes() == []
            with pytest.raises(SandboxGone):
                other.attach(box.name).exec(["true"])
            other.attach(box.name).close()
            assert box.exec(["echo", "alive"]).ok
    finally:
        lines = running.token_file.read_text().splitlines()
        kept = "\n".join(line for line in lines if not line.startswith("other "))
        running.token_file.write_text(kept + "\n")


def test_a_wrong_token_opens_nothing(running):
    with (
        pytest.raises(InfrastructureFailure, match="no job of this token"),
        connect_blocking(running.address, token="x" * 43),
    ):
        pass


def test_the_token_file_is_its_owners_alone(running):
    assert running.token_file.stat().st_mode & 0o077 == 0
