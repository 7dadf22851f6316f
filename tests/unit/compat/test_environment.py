"""What else decides, found without importing any of it."""

import json
import subprocess
import sys

import pytest

from miles_periodic.compat import environment
from miles_periodic.compat.environment import commit_of, cuda_devices, describe, program

NAMED = ("python", "torch", "cuda", "transformer-engine", "deep_ep", "ray", "runsc", "slurm")


class Found:
    """A distribution as importlib.metadata gives it."""

    def __init__(self, origin):
        self.origin = origin

    def read_text(self, name):
        return json.dumps(self.origin) if self.origin is not None else None


@pytest.fixture
def programs(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def made(name, script):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    return made


def test_every_part_says_whether_it_is_present_with_version_and_commit():
    found = describe()
    assert set(NAMED) <= set(found)
    for entry in found.values():
        assert {"present", "version", "commit"} <= set(entry)


def test_nothing_is_imported_to_find_out():
    code = (
        "import sys; from miles_periodic.compat.environment import describe; describe();"
        "print(sorted({'torch', 'ray', 'sglang', 'miles', 'megatron'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_upstream_in_anothers_wheel_has_no_version_of_its_own(monkeypatch):
    monkeypatch.setattr(environment, "DISTRIBUTIONS", {"pluggy": ("not-installed", "pluggy")})
    monkeypatch.setattr(
        environment.metadata, "packages_distributions", lambda: {"pluggy": ["miles-rl"]}
    )
    monkeypatch.setattr(
        environment.metadata, "distribution", _only({"miles-rl": ("0.0.2", Found(None))})
    )
    entry = describe()["pluggy"]
    assert (entry["present"], entry["version"]) == (True, None)
    assert entry["provided_by"] == "miles-rl 0.0.2"


def _only(known):
    def distribution(name):
        if name not in known:
            raise environment.metadata.PackageNotFoundError(name)
        version, found = known[name]
        found.version = version
        return found

    return distribution


def test_a_repository_install_gives_its_commit():
    assert commit_of(Found({"url": "x", "vcs_info": {"commit_id": "abc"}})) == "abc"


def test_an_install_in_place_gives_the_checkouts_commit(tmp_path):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "One"], check=True)
    origin = {"url": tmp_path.as_uri(), "dir_info": {"editable": True}}
    assert len(commit_of(Found(origin))) == 40


@pytest.mark.parametrize("origin", [None, {"url": "file:///nowhere", "dir_info": {}}])
def test_an_install_from_an_index_or_a_file_has_no_commit(origin):
    assert commit_of(Found(origin)) is None


def test_a_program_gives_the_version_that_it_prints(programs):
    programs("runsc", "echo 'runsc version release-20260105.0'")
    assert program("runsc", "--version")["version"] == "20260105.0"


def test_a_program_that_fails_is_present_without_version(programs):
    programs("runsc", "exit 3")
    found = program("runsc", "--version")
    assert (found["present"], found["version"]) == (True, None)


def test_devices_have_name_and_capability(programs):
    programs("nvidia-smi", "echo '570.1, 9.0, NVIDIA H200'; echo '570.1, 9.0, NVIDIA H200'")
    found = cuda_devices()
    assert (found["present"], found["version"], len(found["devices"])) == (True, "570.1", 2)
    assert found["devices"][0] == {"name": "NVIDIA H200", "capability": "9.0"}


def test_a_driver_that_does_not_answer_is_no_device(programs):
    programs("nvidia-smi", "echo 'failed, to, talk' >&2; exit 9")
    assert cuda_devices()["present"] is False
