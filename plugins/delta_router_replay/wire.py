"""Routes as one self-describing blob: a header of 16 bytes and the rows in the model's own dtype.

Stock servers send int32, four bytes for a number that fits into one. The blob says what it holds,
so that a client need not be told which server answered: its first four bytes, read as int32, are
no expert of any model.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

MAGIC = b"MPR3"
VERSION = 1
_FORM = struct.Struct("<4sBBHII")
HEADER_BYTES = _FORM.size
_DTYPES = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<i4")}


class WireError(ValueError):
    """Rows that cannot become a blob, or bytes that are none."""


@dataclass(frozen=True, slots=True)
class Header:
    """What stands in front of the rows.

    itemsize: bytes of one expert id: 1 (uint8), 2 (uint16) or 4 (int32).
    top_k, num_layers: the shape of one row, which is (num_layers, top_k).
    first_row: the absolute number of the first row in its sequence.
    """

    itemsize: int
    top_k: int
    num_layers: int
    first_row: int

    @property
    def dtype(self) -> np.dtype:
        """The little-endian dtype of the rows."""
        return _DTYPES[self.itemsize]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.itemsize * self.top_k * self.num_layers


def wire_dtype(num_experts: int) -> np.dtype:
    """uint8 up to 256 experts, uint16 up to 65,536, else int32: from the model, not from data."""
    if num_experts < 1:
        raise WireError(f"a model with routes has 1 or more experts, not {num_experts}")
    itemsize = 1 if num_experts <= 1 << 8 else 2 if num_experts <= 1 << 16 else 4
    return _DTYPES[itemsize]


def encode(rows: np.ndarray, first_row: int, num_experts: int) -> np.ndarray:
    """The blob of rows (rows, num_layers, top_k), any integer dtype, as a flat uint8 array.

    Raises WireError where `rows` has another shape or dtype, `first_row` does not fit the header,
    or an id lies outside [0, num_experts): a compact dtype would wrap it into a valid one.
    """
    if rows.ndim != 3 or rows.dtype.kind not in "iu":
        raise WireError(
            f"rows are {rows.dtype.name} of shape {rows.shape}; integers of shape "
            "(rows, num_layers, top_k) are encoded"
        )
    dtype = wire_dtype(num_experts)
    if problem := outside(rows, num_experts):
        raise WireError(problem)
    _, num_layers, top_k = rows.shape
    blob = np.empty(HEADER_BYTES + rows.size * dtype.itemsize, np.uint8)
    try:
        _FORM.pack_into(blob, 0, MAGIC, VERSION, dtype.itemsize, top_k, num_layers, first_row)
    except struct.error as error:
        raise WireError(
            f"first_row={first_row}, num_layers={num_layers}, top_k={top_k} do not fit the "
            f"header: {error}"
        ) from error
    blob[HEADER_BYTES:].view(dtype).reshape(rows.shape)[...] = rows
    return blob


def outside(rows: np.ndarray, num_experts: int) -> str | None:
    """The first row and layer with an id outside [0, num_experts), as a clause, or None."""
    if not any_outside(rows, num_experts):
        return None
    row, layer, _ = np.argwhere((rows < 0) | (rows >= num_experts))[0]
    return f"row {row}, layer {layer} names experts {rows[row, layer].tolist()} of {num_experts}"


def any_outside(rows: np.ndarray, num_experts: int) -> bool:
    """Whether an id lies outside [0, num_experts): a negative one, read unsigned, is too large."""
    unsigned = rows.view(f"u{rows.dtype.itemsize}")
    if not rows.size or np.iinfo(unsigned.dtype).max < num_experts:
        return False
    return bool(unsigned.max() >= num_experts)


def is_blob(content: bytes) -> bool:
    """Whether `content` begins as a blob does; so short a text as the magic itself is enough."""
    return content[: len(MAGIC)] == MAGIC


def read_header(content: bytes) -> Header:
    """The header of a blob; WireError where it is cut off, of another version, or impossible."""
    if len(content) < HEADER_BYTES:
        raise WireError(f"{len(content)} bytes are fewer than a header of {HEADER_BYTES}")
    magic, version, itemsize, top_k, num_layers, first_row = _FORM.unpack_from(content)
    if magic != MAGIC:
        raise WireError(f"it begins with {magic!r}, not with {MAGIC!r}")
    if version != VERSION:
        raise WireError(
            f"its version is {version}, and {VERSION} is known here; "
            "install the same miles-periodic on servers and clients"
        )
    if itemsize not in _DTYPES or not top_k or not num_layers:
        raise WireError(
            f"its header states itemsize {itemsize}, top_k {top_k} and {num_layers} layers"
        )
    return Header(itemsize, top_k, num_layers, first_row)


def decode(content: bytes) -> tuple[Header, np.ndarray]:
    """Header and rows (rows, num_layers, top_k) of a blob, read-only and without a copy.

    Raises WireError where the header is none or the bytes behind it are no whole rows.
    """
    header = read_header(content)
    num_bytes = len(content) - HEADER_BYTES
    if num_bytes % header.row_bytes:
        raise WireError(f"{num_bytes} bytes do not divide into rows of {header.row_bytes}")
    rows = np.frombuffer(content, header.dtype, offset=HEADER_BYTES)
    return header, rows.reshape(-1, header.num_layers, header.top_k)
