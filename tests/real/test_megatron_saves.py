"""Two ranks save by every Megatron-core, alone and with our bindings in, over gloo on the CPU.

One process pair per release plays all scenes; see `tests/lines/checkpoint_process.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from miles_periodic.compat.matrix.called import calls

PROCESS = Path(__file__).parents[1] / "lines" / "checkpoint_process.py"
TIMEOUT_SECONDS = 900
STAGING_BYTES = 1 << 20
BIG_BYTES = 4 * 700_000
NUM_ENTRIES = 20

TREES = [
    ("megatron-core", "0.15.3", "3.12"),
    ("megatron-core", "0.16.1", "3.12"),
    ("megatron-core", "0.17.1", "3.12"),
    ("megatron-core", "0.18.2", "3.12"),
    ("megatron-core", "0.19.2", "3.12"),
    ("miles-rl", "0.0.2", "3.11"),
]
RANKS = (0, 1)
OF_BASE = ("0.15.3", "0.16.1", "0.0.2")


@pytest.fixture(scope="module", params=TREES, ids=lambda tree: f"{tree[0]}-{tree[1]}")
def saved(request, unpacked, tmp_path_factory):
    """What each rank saw, and the version."""
    tree, folder = unpacked(*request.param), tmp_path_factory.mktemp("saves")
    command = [sys.executable, "-W", "ignore", str(PROCESS), str(tree), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    facts = json.loads(done.stdout.splitlines()[-1]) if done.stdout else []
    assert len(facts) == 2 and "killed" in facts[0], done.stderr[-4000:]
    return facts, request.param[1]


def test_the_catalog_names_the_save_that_the_release_has(saved):
    facts, version = saved
    save = "checkpoint/save-of-base" if version in OF_BASE else "checkpoint/save"
    for rank in RANKS:
        assert facts[rank]["bindings"] == [save, "checkpoint/host-tensors", "checkpoint/waves"]


def test_each_of_them_is_called_and_stands_on_file(saved, request):
    label = request.node.callspec.id
    assert set(saved[0][0]["consulted"]) == calls()[label]["tests/real/test_megatron_saves.py"]


@pytest.mark.parametrize("scene", ["in-place", "staged", "asynchronous"])
def test_what_is_loaded_has_the_bits_that_the_unstaged_save_loads(saved, scene):
    for facts in saved[0]:
        assert facts[scene]["unequal"] == [] and facts[scene]["compared"] == NUM_ENTRIES


def test_host_tensors_are_written_without_a_copy_but_for_the_one_that_is_strided(saved):
    for facts in saved[0]:
        assert facts["in-place"]["files"] == facts["native_files"]
        assert 400_000 <= facts["in-place"]["peak_bytes"] < 401_000


def test_copies_keep_to_the_bound_but_for_the_tensor_that_is_larger_alone(saved):
    for facts in saved[0]:
        staged = facts["staged"]
        assert 0 < staged["shared_bytes"] <= STAGING_BYTES
        assert BIG_BYTES <= staged["peak_bytes"] < BIG_BYTES + 4096
        assert len(staged["files"]) > len(facts["native_files"])


def test_an_asynchronous_save_stays_as_megatron_makes_it(saved):
    for facts in saved[0]:
        assert facts["asynchronous_preloads"] and facts["asynchronous"]["num_memories"] == 0
        assert facts["asynchronous"]["files"] == facts["native_files"]


def test_a_write_that_the_kernel_refuses_on_one_rank_is_raised_on_all_with_its_cause(saved):
    errors = [facts["file-too-large"]["error"] for facts in saved[0]]
    assert "__1_0.distcp cannot be written: OSError: [Errno 27] File too large" in errors[0]
    assert all(error.startswith("CheckpointException") for error in errors)


def test_memory_that_one_rank_cannot_get_is_raised_on_all_with_its_cause(saved):
    errors = [facts["no-host-memory"]["error"] for facts in saved[0]]
    assert "can't allocate memory" in errors[0]
    assert all(error.startswith("CheckpointException") for error in errors)


def test_a_rank_that_is_killed_while_it_writes_is_an_error_of_the_others(saved):
    (left, gone), _ = saved
    assert left["killed"]["error"] and "killed" not in gone


@pytest.mark.parametrize("scene", ["file-too-large", "no-host-memory", "killed"])
def test_what_a_failed_save_leaves_does_not_look_like_a_checkpoint(saved, scene):
    written = saved[0][0][scene]["written"]
    assert any(name.endswith(".distcp") for name in written)
    assert not {".metadata", "metadata.json"} & set(written)


def test_no_scene_leaves_host_memory_held(saved):
    for facts in saved[0]:
        scenes = [value for value in facts.values() if isinstance(value, dict)]
        assert len(scenes) >= 5 and all(scene["held_bytes"] == 0 for scene in scenes)
