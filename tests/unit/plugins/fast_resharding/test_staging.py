"""The folder in which a target is made: locked, gone on with, published by one rename."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from becoming import becomes
from small_models import IN_MANY_TASKS, refused, same, written

from miles_periodic.cli.bench.torch_dist_writer import TorchDistWriter
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding import reshard
from miles_periodic.plugins.fast_resharding import staging as staging_module
from miles_periodic.plugins.fast_resharding.staging import Staging, staging_folder
from miles_periodic.plugins.fast_resharding.worker import TaskDone, Worker


def test_a_target_that_exists_is_left_alone(source, model_folder, target):
    target.mkdir()
    with pytest.raises(PeriodicError, match="exists"):
        reshard(source, target, config=model_folder)
    assert list(target.iterdir()) == []


def test_a_target_that_may_not_be_written_is_an_error_before_anything_is_read(
    source, model_folder, tmp_path, monkeypatch
):
    def read_only(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(staging_module.os, "open", read_only)
    monkeypatch.setattr(Worker, "run", lambda *_: pytest.fail("it read"))
    refused("(?s)cannot be written.*may write to", source, tmp_path / "target", model_folder)


def test_a_disk_without_the_space_is_an_error_before_anything_is_read(
    source, model_folder, target, monkeypatch
):
    usage = type("Usage", (), {"free": 100})
    monkeypatch.setattr(staging_module.shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr(Worker, "run", lambda *_: pytest.fail("it read"))
    refused("(?s)too little space.*100 bytes", source, target, model_folder)


def test_a_disk_that_fills_up_is_an_error_and_resume_goes_on(
    source, expected, model_folder, target, monkeypatch
):
    pwrite, written_bytes = os.pwrite, []

    def full(file, data, offset):
        written_bytes.append(len(data))
        if sum(written_bytes) > 1500:
            raise OSError(28, "No space left on device")
        return pwrite(file, data, offset)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        refused("(?s)No space left.*--resume", source, target, model_folder, **IN_MANY_TASKS)
    report = reshard(source, target, config=model_folder, resume=True, **IN_MANY_TASKS)
    assert report.resumed_bytes > 0
    assert same(written(target), expected)
    assert not staging_folder(target).exists()


def test_a_run_without_resume_does_not_build_on_what_another_left(
    source, model_folder, target, monkeypatch
):
    leave_unfinished(source, model_folder, target, monkeypatch)
    refused("(?s)unfinished.*--resume", source, target, model_folder, **IN_MANY_TASKS)


def leave_unfinished(source, model_folder, target, monkeypatch, num_tasks=4):
    run = Worker.run

    def until(self, task):
        if task.number >= num_tasks:
            raise KeyboardInterrupt
        return run(self, task)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Worker, "run", until)
        reshard(source, target, config=model_folder, **IN_MANY_TASKS)


def test_resume_does_again_what_was_damaged_in_between(
    source, expected, model_folder, target, monkeypatch
):
    leave_unfinished(source, model_folder, target, monkeypatch)
    shard = min((staging_folder(target) / "content").glob("*.safetensors"))
    with shard.open("r+b") as file:
        file.seek(-1500, os.SEEK_END)
        file.write(b"?" * 8)
    reshard(source, target, config=model_folder, resume=True, **IN_MANY_TASKS)
    assert same(written(target), expected)


def test_resume_refuses_a_checkpoint_that_has_changed(source, model_folder, target, monkeypatch):
    leave_unfinished(source, model_folder, target, monkeypatch)
    os.utime(source / "__0_0.distcp", ns=(1, 1))
    refused(
        "(?s)another plan.*another files",
        source,
        target,
        model_folder,
        resume=True,
        **IN_MANY_TASKS,
    )


def test_resume_after_a_journal_was_cut_off_in_a_line(
    source, expected, model_folder, target, monkeypatch
):
    leave_unfinished(source, model_folder, target, monkeypatch)
    journal = staging_folder(target) / "done.jsonl"
    os.truncate(journal, journal.stat().st_size - 3)
    reshard(source, target, config=model_folder, resume=True, **IN_MANY_TASKS)
    assert same(written(target), expected)


def test_a_second_run_at_the_same_time_is_refused(source, model_folder, target):
    with Staging(target):
        refused(f"being made by process {os.getpid()}", source, target, model_folder)


DRIVER = """
import os, signal, sys, time
from miles_periodic.plugins.fast_resharding import reshard
from miles_periodic.plugins.fast_resharding.worker import TaskDone, Worker
run = Worker.run
def stop(self, task):
    if task.number == 5:
        print("halfway", flush=True)
        time.sleep(240)
    return run(self, task)
Worker.run = stop
reshard(*sys.argv[1:3], config=sys.argv[3], unit_bytes=64, task_bytes=256, shard_bytes=2000)
"""


def test_a_driver_that_is_killed_leaves_no_target_and_is_gone_on_with(
    source, expected, model_folder, target
):
    command = [sys.executable, "-c", DRIVER, source, target, model_folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout.readline() == "halfway\n"
        journal = staging_folder(target) / "done.jsonl"
        assert becomes(lambda: journal.stat().st_size)
        os.kill(driver.pid, signal.SIGKILL)
    assert not target.exists()
    report = reshard(source, target, config=model_folder, resume=True, **IN_MANY_TASKS)
    assert report.resumed_bytes > 0
    assert same(written(target), expected)


def test_two_kills_in_a_row_cost_only_what_was_not_done(
    source, expected, model_folder, target, monkeypatch
):
    leave_unfinished(source, model_folder, target, monkeypatch)
    journal = staging_folder(target) / "done.jsonl"
    os.truncate(journal, journal.stat().st_size - 3)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Staging, "carry", interrupt)
        patched.setattr(Staging, "write", interrupt)
        reshard(source, target, config=model_folder, resume=True, **IN_MANY_TASKS)
    report = reshard(source, target, config=model_folder, resume=True, **IN_MANY_TASKS)
    assert report.resumed_bytes == report.target_bytes
    assert same(written(target), expected)


def interrupt(*_arguments):
    raise KeyboardInterrupt


def test_what_cannot_be_cleaned_up_does_not_hide_that_the_model_is_there(
    source, expected, model_folder, target, monkeypatch
):
    def refuse(*_arguments, **_options):
        raise OSError(39, "Directory not empty")

    monkeypatch.setattr(os, "rmdir", refuse)
    reshard(source, target, config=model_folder)
    assert same(written(target), expected)


def test_a_name_that_may_not_last_is_taken_back(source, model_folder, target, monkeypatch):
    sync = staging_module._sync

    def fail(path):
        if path == target.parent:
            raise OSError(5, "Input/output error")
        sync(path)

    with monkeypatch.context() as patched:
        patched.setattr(staging_module, "_sync", fail)
        refused("Input/output error", source, target, model_folder)
    reshard(source, target, config=model_folder, resume=True)


def test_a_target_that_somebody_made_meanwhile_is_left_alone(source, model_folder, target):
    def appear(progress):
        target.mkdir(exist_ok=True)
        (target / "theirs").touch()

    with pytest.raises(PeriodicError, match="Choose another target, or remove that one"):
        reshard(source, target, config=model_folder, on_progress=appear)
    assert [path.name for path in target.iterdir()] == ["theirs"]


LLAMA = {
    "model_type": "llama",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "vocab_size": 20,
    "intermediate_size": 8,
    "tie_word_embeddings": True,
}


def test_resume_refuses_a_config_of_the_same_shapes_whose_heads_are_others(
    tmp_path, model_folder, target, monkeypatch
):
    def config(**changes):
        (model_folder / "config.json").write_text(json.dumps({**LLAMA, **changes}))

    layer = "decoder.layers.0"
    with TorchDistWriter(tmp_path / "source") as writer:
        for key, shape in {
            "embedding.word_embeddings.weight": (20, 8),
            "decoder.final_layernorm.weight": (8,),
            f"{layer}.self_attention.linear_qkv.layer_norm_weight": (8,),
            f"{layer}.self_attention.linear_qkv.weight": (32, 8),
            f"{layer}.self_attention.linear_proj.weight": (8, 16),
            f"{layer}.mlp.linear_fc1.layer_norm_weight": (8,),
            f"{layer}.mlp.linear_fc1.weight": (16, 8),
            f"{layer}.mlp.linear_fc2.weight": (8, 8),
        }.items():
            writer.add(key, torch.randn(shape).bfloat16())
    config(num_attention_heads=8, num_key_value_heads=4, head_dim=2)
    leave_unfinished(tmp_path / "source", model_folder, target, monkeypatch)
    config()
    named = "(?s)another plan.*another sources of target tensors"
    refused(named, tmp_path / "source", target, model_folder, resume=True, **IN_MANY_TASKS)


def test_a_full_disk_is_one_error_and_lets_the_lock_go(target):
    done = TaskDone(0, ("0",), 1, 1, 0)
    with pytest.raises(PeriodicError, match="No space left"), Staging(target) as staging:
        staging._journal = Path("/dev/full").open("w", encoding="utf-8")  # noqa: SIM115
        staging.record(done)
    with Staging(target):
        pass


def test_what_a_kill_between_two_renames_left_has_its_name_again(target):
    (staging_folder(target) / "before").mkdir(parents=True)
    (staging_folder(target) / "before" / "config.json").touch()
    with Staging(target, replace=True):
        assert [path.name for path in target.iterdir()] == ["config.json"]
