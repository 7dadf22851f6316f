"""The rehearsal's sandboxes: why there may be none, what an agent counts, what is left of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from miles_periodic.cli.rehearsal import sandboxes as module
from miles_periodic.cli.rehearsal.sandboxes import Sandboxes, left_at, read_metrics, sandboxes
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.node import cgroups


@pytest.fixture
def able(monkeypatch):
    """A machine that can have sandboxes, as far as it is asked before an agent is started."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda program: "/usr/bin/runsc")


def reason_of(tmp_path, image_dir="images"):
    with sandboxes(image_dir and tmp_path / image_dir, tmp_path / "log") as found:
        assert found.tools == "" and found.environment == {} and found.count() is None
        assert not found.problem
    return found.reason, found.remedy


def test_sandboxes_that_are_not_wanted_are_not_started(able, tmp_path):
    assert reason_of(tmp_path, None) == (
        "Sandboxes were switched off.",
        "Leave out --no-sandboxes.",
    )


def test_without_root_the_tools_run_without_sandboxes(able, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "need root" in reason_of(tmp_path)[0]


def test_without_runsc_the_tools_run_without_sandboxes(able, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda program: None)
    reason, remedy = reason_of(tmp_path)
    assert reason == "gVisor's runsc is not installed." and "apt-get install runsc" in remedy


def test_a_container_that_may_not_mount_is_a_reason_and_no_failure(able, tmp_path, monkeypatch):
    def refused(*words):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(module, "_said", lambda *words: "")
    monkeypatch.setattr(cgroups, "find", lambda group: None)
    monkeypatch.setattr("miles_periodic.plugins.pbox.node.system_calls.mount", refused)
    reason, remedy = reason_of(tmp_path)
    assert "may not mount" in reason and "privileged" in remedy


def test_a_machine_without_control_groups_is_a_reason(able, tmp_path, monkeypatch):
    def missing(group):
        raise PeriodicError("No control groups here.", remedy="Mount them.")

    monkeypatch.setattr(cgroups, "find", missing)
    assert reason_of(tmp_path) == ("No control groups here.", "Mount them.")


def test_an_image_that_cannot_be_built_is_a_reason(able, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_said", lambda *words: "")
    monkeypatch.setattr(module, "_try_rights", lambda group: None)
    monkeypatch.setattr(module, "PLACES", tmp_path / "places")

    def failing(store, name):
        raise PeriodicError("apt-get has no lists.", remedy="Run apt-get update.")

    monkeypatch.setattr("miles_periodic.plugins.pbox.images.store.ImageStore.build", failing)
    assert reason_of(tmp_path) == ("apt-get has no lists.", "Run apt-get update.")


def test_a_folder_of_images_that_cannot_be_written_is_a_reason(able, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_said", lambda *words: "")
    monkeypatch.setattr(module, "_try_rights", lambda group: None)
    monkeypatch.setattr(module, "PLACES", tmp_path / "places")
    (tmp_path / "file").touch()
    reason, remedy = reason_of(tmp_path, "file/images")
    assert "Not a directory" in reason and "--image-dir" in remedy


def test_a_place_that_cannot_be_made_is_a_reason(able, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_said", lambda *words: "")
    monkeypatch.setattr(module, "_try_rights", lambda group: None)
    monkeypatch.setattr(module, "PLACES", tmp_path / "file" / "places")
    monkeypatch.setattr("miles_periodic.plugins.pbox.images.store.ImageStore.build", lambda *_: 0)
    (tmp_path / "file").touch()
    assert "Not a directory" in reason_of(tmp_path)[0]


def test_an_agent_that_no_longer_answers_is_a_problem_and_no_count(tmp_path):
    found = Sandboxes(environment={"PBOX_ADDRESS": f"unix:{tmp_path}/socket"})
    assert found.count() is None
    assert found.problem == "The agent ended before the run did."


def test_counts_are_summed_over_labels():
    text = '# HELP pbox_warm x\npbox_warm{image="a"} 2\npbox_warm{image="b"} 1\npbox_leases 0\n'
    assert read_metrics(text) == {"pbox_warm": 3, "pbox_leases": 0}


class Groups:
    def __init__(self, *names):
        self.names = names

    def existing(self):
        return dict.fromkeys(self.names)


def test_what_is_left_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroups, "find", lambda group: Groups("one"))
    (tmp_path / "state/sandboxes/one").mkdir(parents=True)
    mounts = f"30 20 0:5 / {tmp_path}/state/sandboxes/one rw - tmpfs tmpfs rw\n31 20 0:6 / /tmp rw"
    assert left_at(tmp_path, mounts) == ["1 control groups", "1 mounts", "1 folders"]


def test_nothing_left_is_nothing_named(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroups, "find", lambda group: Groups())
    assert left_at(tmp_path / "gone", "31 20 0:6 / /tmp rw") == []


def test_a_place_that_the_agents_own_end_removes_first_is_gone_as_well(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroups, "find", lambda group: Groups())
    place, rmdir = tmp_path / "place", Path.rmdir
    place.mkdir()

    def second(folder):
        rmdir(folder)
        rmdir(folder)

    monkeypatch.setattr(Path, "rmdir", second)
    assert module._left_at(place) == [] and not place.exists()
