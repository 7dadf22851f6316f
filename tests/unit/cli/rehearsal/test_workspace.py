"""One rehearsal at a time, and nothing left behind."""

import os
import subprocess
import sys

import pytest

from miles_periodic.cli.rehearsal import workspace as module
from miles_periodic.cli.rehearsal.workspace import workspace
from miles_periodic.hooks.errors import PeriodicError

HOLD = """
import sys
from miles_periodic.cli.rehearsal.workspace import workspace
with workspace(None) as space:
    print(space.folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(module.tempfile, "tempdir", None)


def test_a_temporary_folder_is_gone_afterwards_also_after_an_error():
    with pytest.raises(RuntimeError), workspace(None) as space:
        raise RuntimeError
    assert not space.folder.exists() and not space.ray.parent.exists()


def test_a_folder_of_the_users_is_kept_but_emptied_of_an_earlier_rehearsal(tmp_path):
    (tmp_path / "keep" / "on").mkdir(parents=True)
    (tmp_path / "keep" / "mine").write_text("x")
    with workspace(tmp_path / "keep") as space:
        assert space.folder == tmp_path / "keep" and not (space.folder / "on").exists()
    assert (tmp_path / "keep" / "mine").read_text() == "x"


def test_a_second_rehearsal_is_refused_with_the_first_ones_process():
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        first.stdout.readline()
        with pytest.raises(PeriodicError, match=f"kill {first.pid}"), workspace(None):
            pass
    finally:
        first.communicate(timeout=120)


def test_the_lock_of_a_killed_rehearsal_is_no_obstacle():
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    first.stdout.readline()
    first.kill()
    first.wait(120)
    first.stdin.close()
    first.stdout.close()
    with workspace(None) as space:
        assert space.folder.is_dir()


def test_a_full_disk_is_found_before_anything_starts(monkeypatch):
    monkeypatch.setattr(module, "NEEDED_BYTES", 1 << 62)
    with pytest.raises(PeriodicError, match="too full"), workspace(None):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PeriodicError, match="--work-dir"), workspace(tmp_path / "file" / "below"):
        pass


def test_the_path_of_rays_sockets_stays_short():
    with workspace(None) as space:
        assert len(os.fspath(space.ray)) - len(os.environ["TMPDIR"]) < 20
