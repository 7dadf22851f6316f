import contextlib
import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding.torch_items import locate

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def item(value):
    archive = io.BytesIO()
    torch.save(value, archive)
    return archive.getvalue()


def located(data):
    return locate(lambda offset, count: data[offset : offset + count], len(data), "ITEM")


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bytes_of_a_tensor_lie_where_they_are_found(dtype):
    tensor = torch.arange(24).view(4, 6).to(dtype)
    data = item(tensor)
    raw = located(data)
    assert (raw.sizes, raw.strides) == ((4, 6), (6, 1))
    assert f"torch.{raw.element.name}" == str(dtype)
    expected = tensor.view(torch.uint8).numpy().tobytes()
    assert data[raw.start : raw.start + len(expected)] == expected


@given(st.permutations([0, 1, 2]), st.integers(0, 3))
def test_a_view_is_found_by_its_strides(order, skipped):
    tensor = torch.arange(4 * 5 * 6, dtype=torch.int32).view(4, 5, 6)[skipped:].permute(*order)
    data = item(tensor)
    raw = located(data)
    seen = np.lib.stride_tricks.as_strided(
        np.frombuffer(data, np.int32, offset=raw.start, count=tensor.numel()),
        raw.sizes,
        [stride * 4 for stride in raw.strides],
    )
    assert np.array_equal(seen, tensor.numpy())
    assert raw.is_dense
    assert (
        sorted(raw.strides[axis] for axis in raw.axes_by_stride)[::-1]
        == [raw.strides[axis] for axis in raw.axes_by_stride]
        or 1 in raw.sizes
    )


def test_a_large_tensor_is_found_from_the_ends_of_its_item_alone():
    data, read = item(torch.zeros(1 << 20)), []

    def count(offset, num_bytes):
        read.append(num_bytes)
        return data[offset : offset + num_bytes]

    locate(count, len(data), "ITEM")
    assert sum(read) < 10_000


def test_a_parameter_is_a_tensor():
    assert located(item(torch.nn.Parameter(torch.zeros(3)))).sizes == (3,)


@pytest.mark.parametrize("value", [{"a": torch.zeros(2)}, [1], "text"])
def test_an_item_that_is_no_tensor_is_refused(value):
    with pytest.raises(PeriodicError, match="ITEM is not a tensor"):
        located(item(value))


@pytest.mark.parametrize("keep", [0, 10, 100, 700, 1000])
def test_an_item_that_is_cut_off_is_refused(keep):
    with pytest.raises(PeriodicError, match="ITEM is not a tensor"):
        located(item(torch.zeros(64))[:keep])


@given(st.data())
def test_an_archive_with_a_changed_bit_is_located_or_named(data):
    changed = bytearray(item(torch.arange(6.0).view(2, 3)))
    for place in data.draw(st.lists(st.integers(0, 8 * len(changed) - 1), min_size=1, max_size=4)):
        changed[place // 8] ^= 1 << place % 8
    with contextlib.suppress(PeriodicError):
        located(bytes(changed))


def test_an_archive_whose_members_header_is_gone_is_named():
    data = item(torch.zeros(2, 3))
    at = data.index(b"PK\x03\x04", data.index(b"data.pkl"))
    while b"data/0" not in data[at : at + 60]:
        at = data.index(b"PK\x03\x04", at + 4)
    with pytest.raises(PeriodicError, match="not a tensor as torch.save writes one"):
        located(data[:at] + b"PK\x00\x00" + data[at + 4 :])
