import json
import pickle

import pytest
import torch

from miles_periodic.cli.bench.torch_dist_writer import TorchDistWriter
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding.dcp_checkpoint import check_whole, read_checkpoint


@pytest.fixture
def folder(tmp_path):
    with TorchDistWriter(tmp_path / "iter_0000030") as writer:
        writer.add("a", torch.zeros(4, 6), (2, 3))
        writer.add_object("b", {"c": 1})
    return tmp_path / "iter_0000030"


def change(folder, edit):
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    edit(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def test_tensors_have_their_shapes_types_and_chunks(folder):
    checkpoint = read_checkpoint(folder)
    (tensor,) = checkpoint.tensors.values()
    assert (tensor.key, tensor.shape, tensor.element.name) == ("a", (4, 6), "float32")
    assert [c.box.offsets for c in tensor.chunks] == [(r, c) for r in (0, 2) for c in (0, 2, 4)]
    assert checkpoint.objects == ("b",)
    check_whole(checkpoint, ["a"])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_torch_itself_saves_is_read(tmp_path):
    import torch.distributed.checkpoint as dcp

    state = {"a": torch.zeros(3, 2, dtype=torch.float8_e4m3fn), "b": {"c": torch.zeros(())}}
    dcp.save(state, checkpoint_id=tmp_path / "saved", no_dist=True)
    tensors = read_checkpoint(tmp_path / "saved").tensors
    assert {k: (t.shape, t.element.name) for k, t in tensors.items()} == {
        "a": ((3, 2), "float8_e4m3fn"),
        "b.c": ((), "float32"),
    }


@pytest.mark.parametrize("word", ["30", "iter_0000030"])
def test_the_folder_of_a_run_stands_for_its_newest_iteration(word, folder):
    (folder.parent / "latest_checkpointed_iteration.txt").write_text(f"{word}\n")
    assert read_checkpoint(folder.parent).folder == folder


@pytest.mark.parametrize("name", ["", "nothing"])
def test_a_folder_without_a_checkpoint_is_refused(name, tmp_path):
    with pytest.raises(PeriodicError, match=r"(?s)no torch_dist checkpoint.*Megatron wrote"):
        read_checkpoint(tmp_path / name)


def test_another_format_is_refused_by_name(folder):
    (folder / "metadata.json").write_text(json.dumps({"sharded_backend": "zarr"}))
    with pytest.raises(PeriodicError, match=r"(?s)zarr.*--ckpt-format torch_dist"):
        read_checkpoint(folder)


def test_a_chunk_without_a_place_is_an_error(folder):
    change(folder, lambda metadata: metadata.storage_data.popitem())
    change(folder, lambda metadata: metadata.storage_data.popitem())
    with pytest.raises(PeriodicError, match=r"does not say where the chunk of a at \[2, 4\] lies"):
        read_checkpoint(folder)


def test_a_chunk_that_is_missing_is_an_error(folder):
    change(folder, lambda metadata: metadata.state_dict_metadata["a"].chunks.pop())
    with pytest.raises(PeriodicError, match="4 of 24 elements are missing"):
        check_whole(read_checkpoint(folder), ["a"])


def test_a_chunk_that_is_there_twice_is_an_error(folder):
    def double(metadata):
        chunks = metadata.state_dict_metadata["a"].chunks
        chunks.append(chunks[0])

    change(folder, double)
    with pytest.raises(PeriodicError, match="overlap"):
        check_whole(read_checkpoint(folder), ["a"])


def test_a_compressed_tensor_is_refused(folder):
    def compress(metadata):
        for place in metadata.storage_data.values():
            place.transform_descriptors = ["zstd"]

    change(folder, compress)
    with pytest.raises(PeriodicError, match="(?s)transformed.*zstd.*without compression"):
        read_checkpoint(folder)


def test_two_chunks_in_one_place_are_an_error(folder):
    def share(metadata):
        places = list(metadata.storage_data.values())
        for place in places[1:2]:
            vars(place).update(vars(places[0]))

    change(folder, share)
    with pytest.raises(PeriodicError, match=r"(?s)chunk of a at \[0, 2\] lies where another"):
        check_whole(read_checkpoint(folder), ["a"])


@pytest.mark.parametrize(
    ("name", "value"),
    [("offset", None), ("offset", -1), ("length", "9"), ("length", 0), ("relative_path", {})],
)
def test_a_place_that_is_none_is_an_error(name, value, folder):
    def damage(metadata):
        for place in metadata.storage_data.values():
            object.__setattr__(place, name, value)

    change(folder, damage)
    with pytest.raises(PeriodicError, match=r"(?s)not laid out as torch.*Write the checkpoint"):
        read_checkpoint(folder)


def test_the_note_of_the_newest_iteration_that_is_no_text_is_an_error(folder):
    (folder.parent / "latest_checkpointed_iteration.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(PeriodicError, match="no torch_dist checkpoint"):
        read_checkpoint(folder.parent)
