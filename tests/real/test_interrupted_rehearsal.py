"""Rehearsals that are stopped from outside: an error that names why, and nothing left running."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from becoming import becomes

pytestmark = pytest.mark.real

BIN = Path(sys.executable).parent
UP_SECONDS = 600
ENDED_SECONDS = 300


@pytest.fixture
def rehearsal_process(tmp_path):
    """A rehearsal in the background, with its temporary files in a folder of the test's own."""
    folder = Path(tempfile.gettempdir()) / f"mp-test-{os.getpid()}"
    folder.mkdir()
    child = subprocess.Popen(
        [BIN / "periodic", "--plugins", "periodic", "rehearse", "--steps", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
        # Tests that a shell started in the background inherit that interrupts are ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    child.folder = folder
    yield child
    if child.poll() is None:
        child.kill()
    child.communicate(timeout=ENDED_SECONDS)
    subprocess.run(["rm", "-rf", folder], check=True)


def processes_of(child, title=b""):
    """Processes of the rehearsal that `child` runs, those with `title` in their command line."""
    marks = tuple(
        f"MILES_PERIODIC_RUN_ID=rehearsal-{n}-{child.pid}".encode() for n in ("off", "on")
    )
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environment = (path / "environ").read_bytes()
            ours = any(mark in environment for mark in marks)
            if ours and title in (path / "cmdline").read_bytes():
                found.append(int(path.name))
    return found


def trainers(child):
    found = becomes(lambda: processes_of(child, b"ray::MegatronTrainRayActor"), UP_SECONDS)
    assert found, "no trainer came up"
    return found


def test_an_interrupt_ends_everything_and_leaves_no_file(rehearsal_process):
    trainers(rehearsal_process)
    rehearsal_process.send_signal(signal.SIGINT)
    output, _ = rehearsal_process.communicate(timeout=ENDED_SECONDS)
    assert rehearsal_process.returncode == 130, output
    assert processes_of(rehearsal_process) == []
    assert [p.name for p in rehearsal_process.folder.glob("mp-*")] == []


def test_a_killed_rehearsal_takes_every_process_with_it(rehearsal_process):
    trainers(rehearsal_process)
    rehearsal_process.kill()
    rehearsal_process.wait(ENDED_SECONDS)
    assert becomes(lambda: not processes_of(rehearsal_process))


def test_a_killed_trainer_is_named_and_everything_else_is_ended(rehearsal_process):
    os.kill(trainers(rehearsal_process)[0], signal.SIGKILL)
    output, _ = rehearsal_process.communicate(timeout=ENDED_SECONDS)
    assert rehearsal_process.returncode == 1
    assert "MegatronTrainRayActor" in output or "ActorDiedError" in output
    assert processes_of(rehearsal_process) == []
