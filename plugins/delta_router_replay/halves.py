"""The routes of a request that a prefill and a decode server answered together.

Rows [start, L) of a prompt of L tokens are the prefill server's, the only one that forwarded
them; the decode server's rows for those tokens are whatever its KV slots held before. Rows from L
on are the decode server's. Both halves start at the row that the request asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pybase64

from miles_periodic.plugins.delta_router_replay import wire
from miles_periodic.plugins.delta_router_replay.payload import RouteRowsError, bytes_of


def join(
    prefill: Any,
    decode: Any,
    *,
    start: int,
    num_prompt_tokens: int,
    num_tokens: int,
    request_id: str | None = None,
) -> str:
    """Rows [start, num_tokens - 1) as one server would have answered them, as base64 text.

    prefill, decode: what each answered as routed experts: base64 text or bytes of int32 rows or
        of a compact blob, or None. start: the row asked for. num_tokens: prompt and response.
    Raises RouteRowsError, which names the request and the rows, where a half is missing, has
    other rows than its part needs, or the two are of different forms.
    """
    if not 0 <= start <= num_prompt_tokens <= num_tokens:
        raise RouteRowsError(
            f"a start of {start} does not go with {num_prompt_tokens} prompt tokens "
            f"of {num_tokens}",
            request_id=request_id,
        )
    num_decoded = max(num_tokens - 1 - start, 0)
    num_prefilled = min(num_prompt_tokens - start, num_decoded)
    halves = _Halves(request_id, start, start + num_prefilled, start + num_decoded)
    header, rows = halves.read(decode, "decode server", start, start + num_decoded)
    row_bytes = halves.row_bytes(rows, num_decoded)
    if not num_prefilled:
        return pybase64.b64encode(header + rows).decode()
    first_header, first = halves.read(prefill, "prefill server", start, halves.middle)
    if first_header != header:
        raise halves.refuse("the halves are of different forms", start, halves.end)
    # One row more may come; a server that ignored the start sends two or more, and others.
    most = num_prompt_tokens - start + 1
    if not num_prefilled <= len(first) // row_bytes <= most or len(first) % row_bytes:
        raise halves.refuse(
            f"the prefill server answered {len(first)} bytes, where {num_prefilled} rows of "
            f"{row_bytes} bytes were due",
            start,
            halves.middle,
        )
    split = num_prefilled * row_bytes
    return pybase64.b64encode(header + first[:split] + rows[split:]).decode()


def joined(
    prefill: Mapping[str, Any],
    decode: Mapping[str, Any],
    request: Mapping[str, Any],
    request_id: str,
) -> str:
    """The routes of two `/generate` responses to one request; see `join`."""
    num_prompt_tokens = len(request["input_ids"])
    answered = decode.get("meta_info", {})
    return join(
        prefill.get("meta_info", {}).get("routed_experts"),
        answered.get("routed_experts"),
        start=request.get("routed_experts_start_len") or 0,
        num_prompt_tokens=num_prompt_tokens,
        num_tokens=num_prompt_tokens + answered.get("completion_tokens", 0),
        request_id=request_id,
    )


class _Halves:
    """The rows that one request is about, for messages: [start, middle) and [middle, end)."""

    def __init__(self, request_id: str | None, start: int, middle: int, end: int) -> None:
        self.request_id, self.start, self.middle, self.end = request_id, start, middle, end

    def refuse(self, problem: str, first_row: int, end_row: int) -> RouteRowsError:
        return RouteRowsError(
            problem, request_id=self.request_id, first_row=first_row, end_row=end_row
        )

    def read(self, half: Any, server: str, first_row: int, end_row: int) -> tuple[bytes, bytes]:
        """Header (empty for int32 rows) and rows of one half."""
        if half is None and first_row == end_row:
            return b"", b""
        if not isinstance(half, str | bytes | bytearray | memoryview):
            raise self.refuse(f"the {server} answered no routed experts", first_row, end_row)
        try:
            content = bytes_of(half)
        except ValueError as error:
            raise self.refuse(f"the {server}'s half is no base64 text", first_row, end_row) from (
                error
            )
        size = wire.HEADER_BYTES if wire.is_blob(content) else 0
        return content[:size], content[size:]

    def row_bytes(self, rows: bytes, num_rows: int) -> int:
        """Bytes of one row of the decode server's half."""
        if (len(rows) % num_rows if num_rows else len(rows)) or (num_rows and not rows):
            raise self.refuse(
                f"the decode server answered {len(rows)} bytes, which are not {num_rows} rows",
                self.start,
                self.end,
            )
        return len(rows) // num_rows if num_rows else 0
