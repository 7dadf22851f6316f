"""Damage inside a checkpoint's tensors, found by the checksums that torch.save left there."""

import os
import zlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from megatron_states import sources, write_source
from small_models import IN_MANY_TASKS, leave_unfinished, refused, same, written

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding import reshard
from miles_periodic.plugins.fast_resharding.source_checksums import (
    SourceChecksums,
    Storage,
    Stretch,
    StretchesRead,
    joined,
)
from miles_periodic.plugins.fast_resharding.worker import Worker

DAMAGED = r"(?s){} in __\d_0\.distcp is not what was written there.*Copy the file again"

#: Of two matrices of 48 rows in two chunks of which the second is all padding: nobody reads it.
PADDING_BESIDE_WEIGHTS = 2 * (24 - 20) * 8 * 2


def flip(source, tensor, at):
    """Change a bit of byte `at` of a tensor, wherever it lies."""
    data = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    for path in source.glob("*.distcp"):
        content = bytearray(path.read_bytes())
        if data in content:
            content[content.index(data) + at] ^= 4
            path.write_bytes(content)
            return
    raise LookupError("no file holds these bytes one after the other")


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("how", ["stacked", "layers apart", "keys apart"])
def test_a_flipped_bit_of_a_tensor_is_found(how, at, tmp_path, expected, model_folder, target):
    write_source(tmp_path / "source", expected, 2, how)
    rows = expected["model.layers.1.mlp.experts.2.up_proj.weight"]
    flip(tmp_path / "source", rows[0, :2], at)
    named = DAMAGED.format(r"decoder\.layers.*experts.*linear_fc1\.weight(_v)?")
    refused(named, tmp_path / "source", target, model_folder, **IN_MANY_TASKS)


def test_a_flipped_bit_of_padding_is_found(source, expected, model_folder, target):
    padded = dict(sources(expected, groups=2))["output_layer.weight"]
    flip(source, padded[-1], 5)
    refused(DAMAGED.format(r"output_layer\.weight|embedding.*"), source, target, model_folder)


def test_a_worker_keeps_nothing_of_what_it_reads_again(source, model_folder, target, monkeypatch):
    kept, verify = [], Worker.verify

    def watched(worker, *given):
        verify(worker, *given)
        kept.append(worker._reader.stretches.take())

    monkeypatch.setattr(Worker, "verify", watched)
    reshard(source, target, config=model_folder, verify=True, **IN_MANY_TASKS)
    assert len(kept) > 1 and not any(kept)


def test_every_byte_that_is_read_is_checked_once(source, expected, model_folder, target):
    report = reshard(source, target, config=model_folder, **IN_MANY_TASKS)
    assert report.checked_bytes == report.converted_bytes + PADDING_BESIDE_WEIGHTS
    assert report.unchecked_bytes == 0


def test_what_has_no_checksum_is_converted_and_counted(tmp_path, expected, model_folder, target):
    torch.serialization.set_crc32_options(False)
    try:
        write_source(tmp_path / "source", expected, groups=2)
    finally:
        torch.serialization.set_crc32_options(True)
    report = reshard(tmp_path / "source", target, config=model_folder)
    assert same(written(target), expected)
    unchecked_bytes = report.converted_bytes + PADDING_BESIDE_WEIGHTS
    assert (report.checked_bytes, report.unchecked_bytes) == (0, unchecked_bytes)


def test_damage_is_found_where_a_run_goes_on_that_had_read_it(
    source, expected, model_folder, target, monkeypatch
):
    """The time stamp is what keeps a run from going on with other files."""
    path = source / "__0_0.distcp"
    state = path.stat()
    flip(source, expected["model.embed_tokens.weight"][:1], 5)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    leave_unfinished(source, model_folder, target, monkeypatch)
    named = DAMAGED.format(r"embedding\.word_embeddings\.weight")
    refused(named, source, target, model_folder, resume=True, **IN_MANY_TASKS)


DATA = bytes(range(1, 200))


@given(cuts=st.sets(st.integers(101, 100 + len(DATA) - 1)), seed=st.randoms())
def test_stretches_in_any_order_come_to_the_checksum_of_the_whole(cuts, seed):
    edges = [100, *sorted(cuts), 100 + len(DATA)]
    stretches = [_stretch(a, b) for a, b in zip(edges, edges[1:], strict=False)]
    seed.shuffle(stretches)
    assert joined(stretches) == (_stretch(100, 100 + len(DATA)),)


@given(spans=st.lists(st.tuples(st.integers(0, 198), st.integers(1, 80)), max_size=12))
def test_whatever_was_read_before_what_is_left_completes_the_checksum(spans):
    checksums, read = SourceChecksums(), StretchesRead()
    storage = Storage("key", "file", 100, len(DATA), zlib.crc32(DATA))
    for start, length in [(0, 1), *spans]:
        read.add(storage, 100 + start, memoryview(DATA)[start : start + length])
    checksums.add(read.take())
    for _, gaps in checksums.left():
        for start, length in gaps:
            read.add(storage, start, memoryview(DATA)[start - 100 : start - 100 + length])
    checksums.add(read.take())
    assert (checksums.left(), checksums.checked_bytes) == ([], len(DATA))


def test_a_storage_that_is_read_twice_counts_once():
    checksums, read = SourceChecksums(), StretchesRead()
    storage = Storage("key", "file", 100, len(DATA), zlib.crc32(DATA))
    for _ in range(2):
        read.add(storage, 100, memoryview(DATA))
        checksums.add(read.take())
    assert (checksums.left(), checksums.checked_bytes) == ([], len(DATA))


def test_another_checksum_is_an_error_as_soon_as_all_was_read():
    checksums, read = SourceChecksums(), StretchesRead()
    read.add(Storage("key", "file", 0, len(DATA), 1), 0, memoryview(DATA))
    with pytest.raises(PeriodicError, match="(?s)key in file.*00000001"):
        checksums.add(read.take())


def _stretch(start, end):
    return Stretch(start, end - start, zlib.crc32(DATA[start - 100 : end - 100]))
