"""An agent as a child: where it listens, and that it ends; a stand-in plays the agent."""

import os
import signal
import subprocess
import sys

import pytest

from miles_periodic.cli.pbox import child_agent as module
from miles_periodic.cli.pbox.child_agent import child_agent, own_place
from miles_periodic.plugins.pbox.node.place import PLACE_FILES

LISTENS = """
import os, sys
print(os.getpid(), *sys.argv[1:], file=sys.stderr, flush=True)
print("listening at", sys.argv[sys.argv.index("--listen") + 1], flush=True)
sys.stdin.read()
"""
REFUSES = "import sys; print('no runsc here', file=sys.stderr)"


@pytest.fixture
def play(monkeypatch, tmp_path):
    """Have a program stand in for the agent; what it said, as words, once it has ended."""

    def played(program, **options):
        monkeypatch.setattr(module, "_MAIN", program)
        place, log = tmp_path / "place", tmp_path / "log"
        with (
            log.open("wb") as errors,
            child_agent(place, ["--warm", "base=1"], errors=errors, **options) as address,
        ):
            pass
        return address, log.read_text().split()

    return played


def is_gone(pid):
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
    return True


def test_an_agent_listens_at_its_place_and_ends_with_the_block(play, tmp_path):
    address, (pid, *words) = play(LISTENS)
    assert address == f"unix:{tmp_path}/place/socket"
    assert words[words.index("--cgroup") + 1] == "pbox-place" and words[-1] == "base=1"
    assert is_gone(pid)


def test_an_agent_listens_where_it_is_told_to(play):
    assert play(LISTENS, listen="node1:0")[0] == "node1:0"


def test_an_agent_that_does_not_start_has_no_address_and_says_why(play):
    assert play(REFUSES) == ("", ["no", "runsc", "here"])


def test_an_agent_that_does_not_stop_is_killed_and_that_is_said(play, monkeypatch, capfd):
    monkeypatch.setattr(module, "STOP_SECONDS", 0.01)
    monkeypatch.setattr(subprocess.Popen, "terminate", lambda self: None)
    _, (pid, *_) = play(LISTENS)
    assert is_gone(pid) and "was killed" in capfd.readouterr().err


def test_an_agent_ends_when_the_command_that_needs_it_is_killed(tmp_path):
    """The stand-in tells of its end by that of its standard error, which nobody else has."""
    command = (
        "import time; from pathlib import Path\n"
        "from miles_periodic.cli.pbox import child_agent as module\n"
        f"module._MAIN = {LISTENS!r}\n"
        f"with module.child_agent(Path({str(tmp_path)!r}), []) as address:\n"
        "    print('up', flush=True); time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGKILL)
    pid = int(process.communicate(timeout=120)[1].split()[0])
    assert pid != process.pid


def test_a_place_is_ours_alone_and_gone_afterwards(tmp_path):
    place = tmp_path / "all/one"
    with own_place(place):
        assert place.stat().st_mode & 0o777 == 0o700
        for name in PLACE_FILES:
            (place / name).touch()
    assert os.listdir(tmp_path / "all") == []


def test_what_is_not_an_agents_stays_at_its_place(tmp_path):
    with own_place(tmp_path / "one"):
        (tmp_path / "one/log").touch()
        (tmp_path / "one/tokens").touch()
    assert os.listdir(tmp_path / "one") == ["log"]


def test_a_place_that_the_agents_undertaker_removed_is_no_error(tmp_path):
    with own_place(tmp_path / "one"):
        (tmp_path / "one").rmdir()
