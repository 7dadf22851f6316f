"""What a response may carry as routed experts: decoded, and refused where it cannot be routes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pybase64

from miles_periodic.plugins.delta_router_replay import wire

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
    return wire.wire_dtype(num_experts)


def decode(
    payload: Any,
    num_layers: int,
    top_k: int,
    *,
    wire_dtype: str = "int32",
    first_row: int | None = None,
) -> np.ndarray:
    """The rows in a payload as an array (rows, num_layers, top_k), not yet range checked.

    payload: base64 text or bytes of `wire_dtype` values, or an integer array that has the shape,
        or the same number of values. Text and bytes that stock servers would send as int32 may
        be a blob (see `wire`) instead; it is told by its magic.
    first_row: the row that was asked for; a blob that states another one is refused.
    Raises ValueError where it is none of these.
    """
    if isinstance(payload, np.ndarray):
        return _shaped(payload, num_layers, top_k)
    content = bytes_of(payload)
    if wire_dtype == "int32" and wire.is_blob(content):
        return _of_blob(content, num_layers, top_k, first_row)
    dtype = np.dtype(_WIRE_DTYPES[wire_dtype])
    if len(content) % dtype.itemsize:
        raise ValueError(f"{len(content)} bytes are no whole number of {dtype.name}s")
    return _shaped(np.frombuffer(content, dtype), num_layers, top_k)


def decode_answer(
    payload: Any,
    num_layers: int,
    top_k: int,
    *,
    first_row: int,
    request_id: str | None,
    wire_dtype: str = "int32",
) -> np.ndarray:
    """As `decode`; raises RouteRowsError, which names the request and where its rows begin."""
    try:
        return decode(payload, num_layers, top_k, wire_dtype=wire_dtype, first_row=first_row)
    except (ValueError, KeyError) as error:
        raise RouteRowsError(
            f"the payload cannot be read: {error}",
            request_id=request_id,
            first_row=first_row,
            end_row=first_row,
        ) from error


def wrong_count(found: int, wanted: int, first_row: int, request_id: str | None) -> RouteRowsError:
    """The error for an answer of `found` rows to a request for `wanted` from `first_row` on."""
    return RouteRowsError(
        f"{found} rows came where {wanted} were asked for; the server ignored "
        "routed_experts_start_len or lost rows",
        request_id=request_id,
        first_row=first_row,
        end_row=first_row + found,
    )


def _of_blob(content: bytes, num_layers: int, top_k: int, first_row: int | None) -> np.ndarray:
    header, rows = wire.decode(content)
    if (header.num_layers, header.top_k) != (num_layers, top_k):
        raise ValueError(
            f"its header states rows of {header.num_layers} layers and top {header.top_k}; "
            f"{num_layers} and {top_k} were expected"
        )
    if first_row is not None and header.first_row != first_row:
        raise ValueError(
            f"its header states that it begins at row {header.first_row}; "
            f"row {first_row} was asked for"
        )
    return rows


def _shaped(values: np.ndarray, num_layers: int, top_k: int) -> np.ndarray:
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


#: Letters of base64 that hold a blob's whole header.
_HEADER_LETTERS = 24


def num_rows(text: str, num_layers: int, top_k: int) -> int | None:
    """How many rows a base64 text holds, by its length and its first bytes; the rest is not read.

    None where it cannot be told; decoding it then says why.
    """
    header = _header(text)
    if header is None and _begins_a_blob(text):
        return None
    itemsize = header.itemsize if header else 4
    return num_row_bytes(text) // (itemsize * num_layers * top_k)


def num_row_bytes(text: str) -> int:
    """Bytes of the rows in a base64 text, a blob's header not counted; nothing is decoded."""
    num_bytes = len(text) // 4 * 3 - text[-2:].count("=")
    return num_bytes - (wire.HEADER_BYTES if _begins_a_blob(text) else 0)


def _begins_a_blob(text: str) -> bool:
    return wire.is_blob(_first_bytes(text))


def _header(text: str) -> wire.Header | None:
    try:
        return wire.read_header(_first_bytes(text))
    except wire.WireError:
        return None


def _first_bytes(text: str) -> bytes:
    try:
        return pybase64.b64decode(text[:_HEADER_LETTERS], validate=True)
    except ValueError:
        return b""


def bytes_of(payload: Any) -> bytes:
    """The bytes that a payload carries as base64 text or as bytes; ValueError where it is none."""
    if isinstance(payload, str):
        try:
            payload = pybase64.b64decode(payload, validate=True)
        except ValueError as error:  # binascii.Error and letters outside of ASCII
            raise ValueError(f"it is not base64 text: {error}") from error
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise ValueError(
            f"it is a {type(payload).__name__}; base64 text, bytes or an array may come"
        )
    return bytes(payload)  # a memoryview's length counts its items, or its first axis


def check(rows: np.ndarray, num_experts: int, *, max_constant_run: int | None) -> str | None:
    """What is wrong with decoded rows, as a clause that names the first bad row, or None.

    Experts of one row and layer must lie in [0, num_experts) and differ; more than
    `max_constant_run` equal rows in a row are padding or a stale buffer, not routing. A layer
    without experts is zero in every row, which is taken where another layer is not.
    """
    if not len(rows):
        return None
    return (
        wire.outside(rows, num_experts) or _repeated(rows) or _constant_run(rows, max_constant_run)
    )


def any_repeated(rows: np.ndarray) -> bool:
    """Whether some (…, top_k) names an expert twice.

    Experts are compared pair by pair over all rows at once: for the few experts of a layer that
    is ten times quicker than sorting each row's.
    """
    top_k = rows.shape[-1]
    columns = np.ascontiguousarray(rows.reshape(-1, top_k).T)
    pairs = itertools.combinations(range(top_k), 2)
    return any((columns[a] == columns[b]).any() for a, b in pairs)


def repeats(rows: np.ndarray) -> np.ndarray:
    """For each (…, top_k) of `rows` whether it names an expert twice: bool (…)."""
    ordered = np.sort(rows, axis=-1)
    return (ordered[..., 1:] == ordered[..., :-1]).any(axis=-1)


def _repeated(rows: np.ndarray) -> str | None:
    """The first row and layer that names an expert twice; layers without experts left out."""
    if not any_repeated(rows):
        return None
    repeated = repeats(rows)
    dense = ~rows.any(axis=(0, 2))
    repeated &= ~dense | dense.all()
    if not repeated.any():
        return None
    row, layer = np.argwhere(repeated)[0]
    return f"row {row}, layer {layer} names an expert twice: {rows[row, layer].tolist()}"


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
