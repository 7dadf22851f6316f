"""Conversions onto real file systems that fill up or may not be written to."""

import json
import subprocess
import sys

import pytest
from megatron_states import write_source
from small_models import CONFIG, state

#: As root, and as anybody where the kernel lets users mount in a namespace of their own.
NAMESPACES = (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"])
DISK_BYTES = 1 << 20
#: A quarter of a megabyte of tensors, in more tasks than are ever handed out at once.
SHAPE = CONFIG | {"hidden_size": 512}

ONTO_A_DISK = """
import json, os, subprocess, sys
from pathlib import Path
sys.path[:0] = sys.argv[5:]
from small_models import same, state, written
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding import reshard

source, model, disk, size = *map(Path, sys.argv[1:4]), sys.argv[4]
subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", disk], check=True)
target, facts = disk / "target", {}
options = {"config": model, "unit_bytes": 2048, "task_bytes": 8192}

def attempt(name, **more):
    try:
        reshard(source, target, **options, **more)
    except PeriodicError as error:
        facts[name] = str(error)
    facts[f"{name} published"] = target.exists()

def fill(progress):
    # Before the first task, while nothing else writes: room for every task in flight, not for all.
    if not (disk / "others").exists():
        left = os.statvfs(disk)
        (disk / "others").write_bytes(bytes(left.f_bavail * left.f_frsize - (128 << 10)))

attempt("filled", on_progress=fill)
os.remove(disk / "others")
report = reshard(source, target, resume=True, **options)
facts["resumed bytes"] = report.resumed_bytes
facts["same"] = same(written(target), state(json.loads((model / "config.json").read_text())))
target = disk / "other"
subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
attempt("read-only")
print(json.dumps(facts))
"""


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("disks")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(SHAPE), encoding="utf-8")
    (folder / "disk").mkdir()
    write_source(folder / "source", state(SHAPE), groups=2)
    places = [folder / name for name in ("source", "model", "disk")]
    lines = [path for path in sys.path if path.endswith("lines")]
    command = [sys.executable, "-c", ONTO_A_DISK, *places, str(DISK_BYTES), *lines]
    done = subprocess.run([*_namespace(), *command], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _namespace():
    for words in NAMESPACES:
        if subprocess.run([*words, "true"], capture_output=True).returncode == 0:
            return words
    pytest.skip("this machine lets nobody mount a file system in a namespace")


def test_a_disk_that_another_one_fills_is_an_error_that_says_how_to_go_on(facts):
    assert "No space left" in facts["filled"] and "--resume" in facts["filled"]
    assert not facts["filled published"]


def test_what_was_written_before_the_disk_was_full_is_not_written_again(facts):
    assert facts["resumed bytes"] > 0 and facts["same"]


def test_a_file_system_that_may_not_be_written_to_is_an_error_with_another_way(facts):
    assert "Choose a target on a file system that can be written to" in facts["read-only"]
    assert not facts["read-only published"]
