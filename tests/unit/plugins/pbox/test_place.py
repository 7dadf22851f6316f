"""Who has an agent's folder, when one ends and the next one comes."""

import os
import threading
from types import SimpleNamespace

import pytest

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.node import place


def test_a_folder_has_one_agent(tmp_path, monkeypatch):
    monkeypatch.setattr(place, "END_SECONDS", 0.0)
    lock = place.take(tmp_path / "state")
    with pytest.raises(PeriodicError, match="give this one another --state-dir"):
        place.take(tmp_path / "state")
    os.close(lock)
    os.close(place.take(tmp_path / "state"))


def test_a_sweep_leaves_a_folder_to_the_agent_that_has_it(tmp_path):
    lock = place.take(tmp_path / "state")
    assert place.take_to_sweep(tmp_path / "state") is None
    os.close(lock)


def test_an_agent_waits_for_the_sweep_of_the_one_before_it(tmp_path):
    """And does not end up with a lock on the file that the sweep removed: that excludes nobody."""
    state, taken = tmp_path / "place/state", []
    sweeping = place.take_to_sweep(state)
    waiting = threading.Thread(target=lambda: taken.append(place.take(state)))
    waiting.start()
    node = SimpleNamespace(homes=state / "sandboxes", cgroups=SimpleNamespace(remove=lambda: None),
                           runsc=SimpleNamespace(state=state / "runsc"))  # fmt: skip
    place.remove_place(state, node)
    os.close(sweeping)
    waiting.join(30)
    assert place.take_to_sweep(state) is None
    os.close(taken[0])


def test_a_lock_on_a_file_that_was_removed_is_none(tmp_path, monkeypatch):
    """The one before lets go of the file between our opening of it and our lock on it."""
    state, flock = tmp_path / "state", place.fcntl.flock

    def removed_first(lock, how):
        if monkeypatched:
            monkeypatched.clear()
            (state / "lock").unlink()
        return flock(lock, how)

    monkeypatched = [True]
    monkeypatch.setattr(place.fcntl, "flock", removed_first)
    lock = place.take(state)
    assert os.path.samestat(os.fstat(lock), os.stat(state / "lock"))
    os.close(lock)


@pytest.mark.parametrize(("group", "left"), [("pbox-job-7", []), ("pbox", ["key.pem", "tokens"])])
def test_files_beside_the_folder_are_of_one_run_where_the_group_has_its_name(group, left, tmp_path):
    folder = tmp_path / "job-7"
    folder.mkdir()
    for name in ("key.pem", "tokens"):
        (folder / name).touch()
    place.remove_files(folder / "state", group)
    assert sorted(os.listdir(folder)) == left
