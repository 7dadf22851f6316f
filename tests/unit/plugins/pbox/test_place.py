"""One agent per place, and whoever sweeps places in between."""

import os
import shutil

import pytest

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.node import place


def test_a_place_that_is_taken_is_refused(tmp_path):
    held = place.take(tmp_path / "state")
    with pytest.raises(PeriodicError, match="Another agent uses"):
        place.take(tmp_path / "state")
    os.close(held)
    os.close(place.take(tmp_path / "state"))


def test_a_place_that_is_swept_while_an_agent_comes_is_its_own_afterwards(tmp_path, monkeypatch):
    """As two jobs of a node start: one looks for abandoned places, the other makes its own."""
    state = tmp_path / "state"
    sweeper = place.take(state)
    looks = []

    def sweep(seconds):
        looks.append(seconds)
        if len(looks) == 2:
            shutil.rmtree(state)
            os.close(sweeper)

    monkeypatch.setattr(place.time, "sleep", sweep)
    lock = place.take(state, patience_seconds=3600.0)
    assert len(looks) == 2 and (state / "sandboxes").is_dir()
    with pytest.raises(PeriodicError, match="Another agent uses"):
        place.take(state)
    os.close(lock)


def test_a_lock_whose_file_was_removed_is_none(tmp_path, monkeypatch):
    state, flock = tmp_path / "state", place.fcntl.flock
    removed = []

    def swept_before(lock, how):
        if not removed:
            removed.append(shutil.rmtree(state))
        flock(lock, how)

    monkeypatch.setattr(place.fcntl, "flock", swept_before)
    monkeypatch.setattr(place.time, "sleep", lambda seconds: None)
    lock = place.take(state, patience_seconds=3600.0)
    assert os.path.samestat(os.fstat(lock), os.stat(state / "lock"))
    os.close(lock)
