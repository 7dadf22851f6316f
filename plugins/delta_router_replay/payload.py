"""What a response may carry as routed experts: decoded, and refused where it cannot be routes."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np

_WIRE_DTYPES = {"int32": np.int32, "uint16": np.uint16, "uint8": np.uint8}


class RouteRowsError(ValueError):
    """A payload that cannot be the routes it is said to be.

    request_id: of the response that carried it, where known.
    first_row, end_row: the half-open range of rows that the error is about.
    """

    def __init__(
        self, problem: str, *, request_id: str | None = None, first_row: int = 0, end_row: int = 0
    ) -> None:
        self.problem = problem
        self.request_id = request_id
        self.first_row = first_row
        self.end_row = end_row
        source = f"request {request_id}" if request_id else "a payload"
        super().__init__(f"{source}, rows [{first_row}, {end_row}): {problem}")

    def __reduce__(self):
        return _rebuild, (self.problem, self.request_id, self.first_row, self.end_row)


def _rebuild(problem, request_id, first_row, end_row):
    return RouteRowsError(problem, request_id=request_id, first_row=first_row, end_row=end_row)


def compact_dtype(num_experts: int) -> np.dtype:
    """uint8 up to 256 experts, uint16 up to 65,536: from the model, never from the data seen."""
    if not 1 <= num_experts <= 1 << 16:
        raise ValueError(f"num_experts must lie in [1, 65536], not {num_experts}")
    return np.dtype(np.uint8 if num_experts <= 256 else np.uint16)


def decode(payload: Any, num_layers: int, top_k: int, *, wire_dtype: str = "int32") -> np.ndarray:
    """The rows in a payload as an array (rows, num_layers, top_k), not yet range checked.

    payload: base64 text or bytes of `wire_dtype` values, or an integer array that has the shape,
        or the same number of values. Raises ValueError where it is none of these.
    """
    if isinstance(payload, np.ndarray):
        values = payload
    else:
        values = np.frombuffer(
            _bytes_of(payload, _WIRE_DTYPES[wire_dtype]), _WIRE_DTYPES[wire_dtype]
        )
    if values.dtype.name not in _WIRE_DTYPES:
        raise ValueError(
            f"its dtype is {values.dtype.name}; int32, uint16 and uint8 are known on the wire"
        )
    per_row = num_layers * top_k
    if values.ndim > 1 and values.shape[1:] not in ((num_layers, top_k), (per_row,)):
        raise ValueError(f"its shape is {values.shape}; (rows, {num_layers}, {top_k}) was expected")
    if values.size % per_row:
        raise ValueError(f"{values.size} values do not divide into rows of {per_row}")
    return values.reshape(-1, num_layers, top_k)


def _bytes_of(payload: Any, dtype: type) -> bytes:
    if isinstance(payload, str):
        try:
            payload = base64.b64decode(payload.encode("ascii"), validate=True)
        except (binascii.Error, UnicodeEncodeError) as error:
            raise ValueError(f"it is not base64 text: {error}") from error
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise ValueError(
            f"it is a {type(payload).__name__}; base64 text, bytes or an array may come"
        )
    content = bytes(payload)  # a memoryview's length counts its items, or its first axis
    if len(content) % np.dtype(dtype).itemsize:
        raise ValueError(f"{len(content)} bytes are no whole number of {np.dtype(dtype).name}s")
    return content


def check(rows: np.ndarray, num_experts: int, *, max_constant_run: int | None) -> str | None:
    """What is wrong with decoded rows, as a clause that names the first bad row, or None.

    Experts of one row and layer must lie in [0, num_experts) and differ; more than
    `max_constant_run` equal rows in a row are padding or a stale buffer, not routing.
    """
    if not len(rows):
        return None
    outside = (rows < 0) | (rows >= num_experts)
    if outside.any():
        row, layer, _ = np.argwhere(outside)[0]
        return (
            f"row {row}, layer {layer} names experts {rows[row, layer].tolist()} of {num_experts}"
        )
    ordered = np.sort(rows, axis=-1)
    repeated = (ordered[..., 1:] == ordered[..., :-1]).any(axis=-1)
    if repeated.any():
        row, layer = np.argwhere(repeated)[0]
        return f"row {row}, layer {layer} names an expert twice: {rows[row, layer].tolist()}"
    return _constant_run(rows, max_constant_run)


def _constant_run(rows: np.ndarray, longest_allowed: int | None) -> str | None:
    if longest_allowed is None or len(rows) <= longest_allowed:
        return None
    changes = np.flatnonzero((rows[1:] != rows[:-1]).any(axis=(1, 2))) + 1
    edges = np.concatenate(([0], changes, [len(rows)]))
    lengths = np.diff(edges)
    longest = int(lengths.argmax())
    if lengths[longest] <= longest_allowed:
        return None
    first = int(edges[longest])
    return f"{lengths[longest]} equal rows from row {first} on; at most {longest_allowed} are taken"
