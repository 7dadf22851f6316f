"""Rows of a response in either wire form: stock int32 values, or a compact blob with a header."""

from __future__ import annotations

import base64
import binascii
import struct
from typing import Any

import numpy as np

from miles_periodic.hooks.values import RouteShape
from miles_periodic.plugins.delta_router_replay.payload import decode

MAGIC = b"MPR3"
_HEADER = struct.Struct("<4sBBHII")
_DTYPES = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<i4")}
#: Base64 turns three bytes into four characters; a header ends within these.
_HEADER_CHARACTERS = 24


def num_rows(payload: Any, shape: RouteShape) -> int:
    """How many rows a base64 text holds, by its length and header alone."""
    num_bytes = len(payload) // 4 * 3 - payload[-2:].count("=")
    per_row = shape.num_layers * shape.top_k
    head = base64.b64decode(payload[:_HEADER_CHARACTERS])
    if not head.startswith(MAGIC) or len(head) < _HEADER.size:
        return num_bytes // (4 * per_row)
    itemsize = _HEADER.unpack_from(head)[2]
    return (num_bytes - _HEADER.size) // (itemsize * per_row)


def read(payload: Any, shape: RouteShape, *, first_row: int) -> np.ndarray:
    """The rows (rows, layers, top_k) of a base64 text; ValueError where it holds none.

    first_row: where the rows must begin; a compact blob says where they do.
    """
    try:
        content = base64.b64decode(payload.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError, AttributeError) as error:
        raise ValueError(f"it is not base64 text: {error}") from error
    if not content.startswith(MAGIC):
        return decode(content, shape.num_layers, shape.top_k)
    return _compact(content, shape, first_row)


def _compact(content: bytes, shape: RouteShape, first_row: int) -> np.ndarray:
    if len(content) < _HEADER.size:
        raise ValueError(f"{len(content)} bytes are less than the header")
    _, version, itemsize, top_k, num_layers, begins = _HEADER.unpack_from(content)
    if version != 1 or itemsize not in _DTYPES:
        raise ValueError(f"version {version} with items of {itemsize} bytes is not known")
    if (num_layers, top_k) != (shape.num_layers, shape.top_k):
        raise ValueError(
            f"its rows are ({num_layers}, {top_k}) and not ({shape.num_layers}, {shape.top_k})"
        )
    if begins != first_row:
        raise ValueError(f"it begins at row {begins}, not at row {first_row}")
    values = np.frombuffer(content, _DTYPES[itemsize], offset=_HEADER.size)
    return decode(values.astype(values.dtype.newbyteorder("="), copy=False), num_layers, top_k)
