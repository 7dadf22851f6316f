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
from pbox_agent import IMAGES
from pbox_image import why_no_sandboxes

from miles_periodic.cli.rehearsal.sandboxes import left_at

pytestmark = pytest.mark.real

BIN = Path(sys.executable).parent
UP_SECONDS = 600
ENDED_SECONDS = 300


@pytest.fixture
def rehearsal_process(request):
    """A rehearsal in the background, with its temporary files in a folder of the test's own.

    request.param: one more option.
    """
    folder = Path(tempfile.gettempdir()) / f"mp-test-{os.getpid()}"
    folder.mkdir()
    child = subprocess.Popen(
        [
            *(BIN / "periodic", "--plugins", "periodic", "rehearse", "--steps", "1"),
            *("--image-dir", IMAGES, *([request.param] if hasattr(request, "param") else [])),
        ],
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
    # Whatever is still on its way out may write a last file meanwhile.
    assert becomes(lambda: subprocess.run(["rm", "-rf", folder]).returncode == 0)


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


def no_sandbox_is_left(child):
    if not why_no_sandboxes():
        place = Path(f"/run/pbox/rehearsal-{child.pid}")
        assert becomes(lambda: not place.exists() and not left_at(place)), left_at(place)


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
    no_sandbox_is_left(rehearsal_process)


def test_a_killed_rehearsal_takes_every_process_with_it(rehearsal_process):
    trainers(rehearsal_process)
    rehearsal_process.kill()
    rehearsal_process.wait(ENDED_SECONDS)
    assert becomes(lambda: not processes_of(rehearsal_process))
    no_sandbox_is_left(rehearsal_process)


@pytest.mark.parametrize("rehearsal_process", ["--no-sandboxes"], indirect=True)
def test_a_killed_trainer_is_named_and_everything_else_is_ended(rehearsal_process):
    os.kill(trainers(rehearsal_process)[0], signal.SIGKILL)
    output, _ = rehearsal_process.communicate(timeout=ENDED_SECONDS)
    assert rehearsal_process.returncode == 1
    assert "MegatronTrainRayActor" in output or "ActorDiedError" in output
    assert processes_of(rehearsal_process) == []
