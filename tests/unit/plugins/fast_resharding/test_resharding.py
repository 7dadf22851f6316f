import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from megatron_states import write_source
from small_models import same, state, written

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding import reshard
from miles_periodic.plugins.fast_resharding import staging as staging_module
from miles_periodic.plugins.fast_resharding.staging import Staging, staging_folder
from miles_periodic.plugins.fast_resharding.worker import Worker

SMALL = {"unit_bytes": 64, "task_bytes": 256, "shard_bytes": 2000}


@pytest.fixture
def expected(config):
    return state(config)


@pytest.fixture
def source(tmp_path, expected):
    write_source(tmp_path / "source", expected, groups=2)
    return tmp_path / "source"


@pytest.fixture
def target(tmp_path):
    return tmp_path / "target"


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("how", ["stacked", "layers apart", "keys apart"])
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_every_layout_of_ranks_gives_the_same_files(
    how, parts, tmp_path, expected, model_folder, target
):
    write_source(tmp_path / "other", expected, 2, how, parts)
    write_source(tmp_path / "source", expected, 2)
    for name in ("other", "source"):
        reshard(tmp_path / name, tmp_path / f"{name}-target", config=model_folder, **SMALL)
    ours, theirs = (files(tmp_path / f"{name}-target") for name in ("other", "source"))
    del ours["reshard.json"], theirs["reshard.json"]
    assert ours == theirs
    assert same(written(tmp_path / "other-target"), expected)


@pytest.mark.parametrize("unit_bytes", [1, 16, 100, 10_000])
def test_the_size_of_units_changes_nothing(unit_bytes, source, expected, model_folder, target):
    reshard(source, target, config=model_folder, unit_bytes=unit_bytes)
    assert same(written(target), expected)


def test_shards_and_index_are_as_the_tools_of_hugging_face_expect(source, model_folder, target):
    reshard(source, target, config=model_folder, shard_bytes=900)
    index = json.loads((target / "model.safetensors.index.json").read_text())
    count = len(set(index["weight_map"].values()))
    assert count > 1
    assert set(index["weight_map"].values()) == {
        f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)
    }
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in written(target).values())
    assert index["weight_map"].keys() == written(target).keys()


def test_what_stands_beside_the_weights_is_carried_over(source, model_folder, target):
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json"):
        (model_folder / name).write_text("{}")
    (model_folder / "pytorch_model.bin").write_bytes(b"old weights")
    reshard(source, target, config=model_folder)
    assert set(files(target)) == {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "reshard.json",
        "tokenizer.json",
    }


def test_the_report_accounts_for_every_byte_of_the_checkpoint(
    source, expected, model_folder, target
):
    report = reshard(source, target, config=model_folder)
    num_bytes = sum(tensor.nbytes for tensor in expected.values())
    assert (report.converted_bytes, report.target_bytes) == (num_bytes, num_bytes)
    assert report.padding_bytes == 2 * 28 * 8 * 2
    assert report.num_tensors == len(expected)


def test_progress_ends_with_all_bytes_done(source, model_folder, target):
    seen = []
    reshard(source, target, config=model_folder, verify=True, on_progress=seen.append, **SMALL)
    last = {progress.doing: progress for progress in seen}
    assert set(last) == {"converting", "verifying"}
    assert all(progress.done_bytes == progress.total_bytes for progress in last.values())


def refused(match, source, target, model_folder, **options):
    with pytest.raises(PeriodicError, match=match):
        reshard(source, target, config=model_folder, **options)
    assert not target.exists()


def test_a_target_that_exists_is_left_alone(source, model_folder, target):
    target.mkdir()
    with pytest.raises(PeriodicError, match="exists"):
        reshard(source, target, config=model_folder)
    assert list(target.iterdir()) == []


def test_a_file_that_is_missing_is_named(source, model_folder, target):
    (source / "__1_0.distcp").unlink()
    refused(r"__1_0\.distcp is missing", source, target, model_folder)


def test_a_file_that_is_cut_off_is_named(source, model_folder, target):
    path = source / "__1_0.distcp"
    os.truncate(path, path.stat().st_size - 1)
    refused(r"(?s)__1_0\.distcp is cut off.*Copy the file again", source, target, model_folder)


def test_a_file_that_is_cut_off_during_the_conversion_is_named(
    source, model_folder, target, monkeypatch
):
    run = Worker.run

    def cut_off(self, task):
        os.truncate(source / "__1_0.distcp", 100)
        return run(self, task)

    monkeypatch.setattr(Worker, "run", cut_off)
    refused(r"__1_0\.distcp is cut off", source, target, model_folder)


def test_damage_inside_a_file_is_found(source, model_folder, target):
    path = source / "__1_0.distcp"
    data = bytearray(path.read_bytes())
    data[:4000] = bytes(4000)
    path.write_bytes(data)
    refused("is not a tensor as torch.save writes one", source, target, model_folder)


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
        refused("(?s)No space left.*--resume", source, target, model_folder, **SMALL)
    report = reshard(source, target, config=model_folder, resume=True, **SMALL)
    assert report.resumed_bytes > 0
    assert same(written(target), expected)
    assert not staging_folder(target).exists()


def test_a_run_without_resume_does_not_build_on_what_another_left(
    source, model_folder, target, monkeypatch
):
    leave_unfinished(source, model_folder, target, monkeypatch)
    refused("(?s)unfinished.*--resume", source, target, model_folder, **SMALL)


def leave_unfinished(source, model_folder, target, monkeypatch, num_tasks=4):
    run = Worker.run

    def until(self, task):
        if task.number >= num_tasks:
            raise KeyboardInterrupt
        return run(self, task)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Worker, "run", until)
        reshard(source, target, config=model_folder, **SMALL)


def test_resume_does_again_what_was_damaged_in_between(
    source, expected, model_folder, target, monkeypatch
):
    leave_unfinished(source, model_folder, target, monkeypatch)
    shard = min((staging_folder(target) / "content").glob("*.safetensors"))
    with shard.open("r+b") as file:
        file.seek(-1500, os.SEEK_END)
        file.write(b"?" * 8)
    reshard(source, target, config=model_folder, resume=True, **SMALL)
    assert same(written(target), expected)


def test_resume_refuses_a_checkpoint_that_has_changed(source, model_folder, target, monkeypatch):
    leave_unfinished(source, model_folder, target, monkeypatch)
    os.utime(source / "__0_0.distcp", ns=(1, 1))
    refused("(?s)another plan.*another files", source, target, model_folder, resume=True, **SMALL)


def test_resume_after_a_journal_was_cut_off_in_a_line(
    source, expected, model_folder, target, monkeypatch
):
    leave_unfinished(source, model_folder, target, monkeypatch)
    journal = staging_folder(target) / "done.jsonl"
    os.truncate(journal, journal.stat().st_size - 3)
    reshard(source, target, config=model_folder, resume=True, **SMALL)
    assert same(written(target), expected)


def test_a_second_run_at_the_same_time_is_refused(source, model_folder, target):
    with Staging(target):
        refused(f"being made by process {os.getpid()}", source, target, model_folder)


DRIVER = """
import os, signal, sys, time
from miles_periodic.plugins.fast_resharding import reshard
from miles_periodic.plugins.fast_resharding.worker import Worker
run = Worker.run
def stop(self, task):
    if task.number == 5:
        print("halfway", flush=True)
        time.sleep(60)
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
        deadline = time.monotonic() + 30
        journal = staging_folder(target) / "done.jsonl"
        while not journal.stat().st_size and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(driver.pid, signal.SIGKILL)
    assert not target.exists()
    report = reshard(source, target, config=model_folder, resume=True, **SMALL)
    assert report.resumed_bytes > 0
    assert same(written(target), expected)


@pytest.mark.parametrize("side", ["source", "target"])
def test_verify_finds_what_changed_on_either_side(
    side, source, expected, model_folder, target, monkeypatch
):
    forget = Worker.forget
    sides = {"source": source, "target": staging_folder(target) / "content"}
    norm = expected["model.norm.weight"][:4].view(torch.uint8).numpy().tobytes()

    def damage(self):
        forget(self)
        for path in sides[side].iterdir():
            data = path.read_bytes()
            if norm in data:
                with path.open("r+b") as file:
                    file.seek(data.index(norm))
                    file.write(b"?")

    monkeypatch.setattr(Worker, "forget", damage)
    named = rf"(?s)Reading model\.norm\.weight again from the {side}.*convert again"
    refused(named, source, target, model_folder, verify=True)


def test_a_change_to_the_config_is_published_with_it(source, model_folder, target):
    reshard(source, target, config=model_folder, changes={"num_experts": 4, "head_dim": 4})
    assert json.loads((target / "config.json").read_text())["num_experts"] == 4


def test_a_change_to_a_key_that_the_config_does_not_have_is_refused(source, model_folder, target):
    named = r"(?s)no key 'num_expert'.*num_experts"
    refused(named, source, target, model_folder, changes={"num_expert": 4})


def test_the_published_config_says_what_was_written(source, config, model_folder, target):
    config |= {"torch_dtype": config.pop("dtype"), "quantization_config": {"quant_method": "fp8"}}
    (model_folder / "config.json").write_text(json.dumps(config))
    reshard(source, target, config=model_folder, dtype="float32")
    published = json.loads((target / "config.json").read_text())
    assert published["torch_dtype"] == "float32"
    assert "quantization_config" not in published and "dtype" not in published


def test_two_kills_in_a_row_cost_only_what_was_not_done(
    source, expected, model_folder, target, monkeypatch
):
    leave_unfinished(source, model_folder, target, monkeypatch)
    journal = staging_folder(target) / "done.jsonl"
    os.truncate(journal, journal.stat().st_size - 3)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Staging, "carry", interrupt)
        patched.setattr(Staging, "write", interrupt)
        reshard(source, target, config=model_folder, resume=True, **SMALL)
    report = reshard(source, target, config=model_folder, resume=True, **SMALL)
    assert report.resumed_bytes == report.target_bytes
    assert same(written(target), expected)


def interrupt(*_arguments):
    raise KeyboardInterrupt


def test_a_header_that_changed_is_found_by_verifying(source, model_folder, target, monkeypatch):
    forget = Worker.forget

    def damage(self):
        forget(self)
        for path in (staging_folder(target) / "content").iterdir():
            with path.open("r+b") as file:
                file.seek(12)
                file.write(b"?")

    monkeypatch.setattr(Worker, "forget", damage)
    refused("(?s)header of model.*convert again", source, target, model_folder, verify=True)


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


def test_a_tokenizer_that_cannot_be_read_is_named(source, model_folder, target, monkeypatch):
    (model_folder / "tokenizer.json").write_text("{}")
    read = Path.read_bytes

    def refuse(path):
        if path.name == "tokenizer.json":
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    refused(r"(?s)tokenizer\.json cannot be carried over.*--resume", source, target, model_folder)


@pytest.mark.parametrize("text", ["[1]", "3", "{"])
@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("source/metadata.json", "Copy the checkpoint again"),
        ("model/config.json", "with --config"),
        ("model/model.safetensors.index.json", "Give --config a folder"),
    ],
)
def test_a_file_of_json_that_is_damaged_is_named(
    name, remedy, text, source, model_folder, target, tmp_path
):
    (tmp_path / name).write_text(text)
    refused(f"(?s){tmp_path / name}.*{remedy}", source, target, model_folder)
