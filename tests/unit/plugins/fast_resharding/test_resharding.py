"""The whole way from a checkpoint to a published folder, and what stops it."""

import json
import os
from pathlib import Path

import pytest
import torch
from megatron_states import write_source
from small_models import IN_MANY_TASKS, refused, same, written

from miles_periodic.plugins.fast_resharding import reshard
from miles_periodic.plugins.fast_resharding.staging import staging_folder
from miles_periodic.plugins.fast_resharding.worker import Worker


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
        reshard(tmp_path / name, tmp_path / f"{name}-target", config=model_folder, **IN_MANY_TASKS)
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
    reshard(
        source, target, config=model_folder, verify=True, on_progress=seen.append, **IN_MANY_TASKS
    )
    last = {progress.doing: progress for progress in seen}
    assert set(last) == {"converting", "verifying"}
    assert all(progress.done_bytes == progress.total_bytes for progress in last.values())


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


@pytest.mark.parametrize("name", ["hf_quant_config.json", "quantize_config.json"])
def test_how_the_origin_was_quantised_is_not_said_of_what_is_written(
    name, source, config, model_folder, target
):
    config |= {"compression_config": {"format": "int-quantized"}, "torch_dtype": "float16"}
    (model_folder / "config.json").write_text(json.dumps(config))
    (model_folder / name).write_text("{}")
    reshard(source, target, config=model_folder)
    published = json.loads((target / "config.json").read_text())
    assert not (target / name).exists() and "compression_config" not in published
    assert (published["dtype"], published["torch_dtype"]) == ("bfloat16", "bfloat16")


@pytest.mark.parametrize(
    "header", [b"[1,2]", b'{"a":3}', b'{"a":{}}', b'{"a":{"dtype":[1]}}', b"{", b"\xff"]
)
def test_weights_of_the_origin_that_are_no_safetensors_are_named(
    header, source, model_folder, target
):
    data = len(header).to_bytes(8, "little") + header
    (model_folder / "model.safetensors").write_bytes(data)
    refused(r"(?s)model\.safetensors is no safetensors", source, target, model_folder)


@pytest.mark.parametrize("weight_map", [{"a": [1]}, {"a": None}, {"a": 3}])
def test_an_index_of_the_origin_without_names_of_files_is_named(
    weight_map, source, model_folder, target
):
    index = model_folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    refused("is no index of safetensors files", source, target, model_folder)


@pytest.mark.parametrize("layers", [3, "0", [0.5], [True], {"0": 1}])
def test_numbers_of_layers_that_are_none_are_refused(layers, source, config, model_folder, target):
    (model_folder / "config.json").write_text(json.dumps({**config, "mlp_only_layers": layers}))
    refused("no usable mlp_only_layers", source, target, model_folder)
