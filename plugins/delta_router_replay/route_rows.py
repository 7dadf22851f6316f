"""The routes of one trajectory: compact, append-only, never overwritten."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from miles_periodic.plugins.delta_router_replay.payload import (
    RouteRowsError,
    check,
    compact_dtype,
    decode_answer,
)


def _whole(start: Any, request_id: str | None) -> int:
    """A row number as a Python int: a NumPy scalar's arithmetic would wrap around."""
    try:
        return operator.index(start)
    except TypeError as error:
        raise RouteRowsError(
            f"start is {start!r}, which is no row number", request_id=request_id
        ) from error


class RouteRows:
    """Rows of routed experts, one per forwarded token, for num_layers x top_k of num_experts.

    Held as uint8 (up to 256 experts) or uint16. A refused payload changes nothing; a row once
    held is never overwritten, also where a later response carries it again.
    """

    def __init__(
        self,
        num_layers: int,
        top_k: int,
        num_experts: int,
        *,
        max_constant_run: int | None = None,
    ) -> None:
        if num_layers < 1 or not 1 <= top_k <= num_experts:
            raise ValueError(
                f"no routes have num_layers={num_layers}, top_k={top_k}, num_experts={num_experts}"
            )
        self.num_layers = num_layers
        self.top_k = top_k
        self.num_experts = num_experts
        self.max_constant_run = max_constant_run
        self._buffer = np.empty((0, num_layers, top_k), compact_dtype(num_experts))
        self._num_rows = 0
        self._spans: list[tuple[int, str | None]] = []

    def __len__(self) -> int:
        return self._num_rows

    @property
    def next_start(self) -> int:
        """The first row that is not held: what the next request asks for."""
        return self._num_rows

    @property
    def nbytes(self) -> int:
        """Bytes of the rows held."""
        return self._num_rows * self._buffer[:0].dtype.itemsize * self.num_layers * self.top_k

    @property
    def weight_versions(self) -> list[tuple[int, str | None]]:
        """(first row, weight version) of each append, in order."""
        return list(self._spans)

    def append(
        self,
        start: int,
        payload: Any,
        *,
        weight_version: str | None = None,
        request_id: str | None = None,
        wire_dtype: str = "int32",
    ) -> int:
        """Take the rows [start, start + n) of a response; returns how many of them were new.

        start: the absolute row of the payload's first row. It may lie before `next_start`: rows
            that are held stay as they are. payload: see `payload.decode`; an empty one is valid.
        Raises RouteRowsError, and changes nothing, where rows are missing before `start` or the
        payload is no routes.
        """
        start = _whole(start, request_id)
        rows = self._decoded(start, payload, request_id, wire_dtype)
        new = rows[max(self._num_rows - start, 0) :]
        if len(new):
            self._spans.append((self._num_rows, weight_version))
            self._extend(new)
        return len(new)

    def _decoded(
        self, start: int, payload: Any, request_id: str | None, wire_dtype: str
    ) -> np.ndarray:
        def refuse(problem: str, end: int) -> RouteRowsError:
            return RouteRowsError(problem, request_id=request_id, first_row=start, end_row=end)

        if not 0 <= start <= self._num_rows:
            raise refuse(f"{self._num_rows} rows are held, so that a gap would be left", start)
        rows = decode_answer(
            payload,
            self.num_layers,
            self.top_k,
            first_row=start,
            request_id=request_id,
            wire_dtype=wire_dtype,
        )
        problem = check(rows, self.num_experts, max_constant_run=self.max_constant_run)
        if problem:
            raise refuse(problem, start + len(rows))
        return rows

    def _extend(self, rows: np.ndarray) -> None:
        needed = self._num_rows + len(rows)
        if needed > len(self._buffer):
            grown = np.empty(
                (max(needed, 2 * len(self._buffer)), *self._buffer.shape[1:]), self._buffer.dtype
            )
            grown[: self._num_rows] = self._buffer[: self._num_rows]
            self._buffer = grown
        self._buffer[self._num_rows : needed] = rows
        self._num_rows = needed

    def truncate(self, tokens: int) -> None:
        """Keep the rows of the first `tokens` forwarded tokens; more than are held keeps all.

        Rows given out before stay valid: what is appended afterwards goes into memory of its own.
        """
        if tokens < 0:
            raise ValueError(f"tokens must be 0 or more, not {tokens}")
        if tokens < self._num_rows:
            self._buffer = self._buffer[:tokens].copy()
            self._num_rows = tokens
            self._spans = [span for span in self._spans if span[0] < tokens]

    def fork(self, tokens: int) -> RouteRows:
        """Rows of their own that begin with a copy of the first `tokens` rows held here."""
        if not 0 <= tokens <= self._num_rows:
            raise ValueError(f"of {self._num_rows} rows no {tokens} can be taken")
        fork = RouteRows(
            self.num_layers,
            self.top_k,
            self.num_experts,
            max_constant_run=self.max_constant_run,
        )
        fork._buffer = self._buffer[:tokens].copy()
        fork._num_rows = tokens
        fork._spans = [span for span in self._spans if span[0] < tokens]
        return fork

    def array(self) -> np.ndarray:
        """All rows held, (rows, num_layers, top_k), compact dtype, read-only, without a copy."""
        rows = self._buffer[: self._num_rows]
        rows.flags.writeable = False
        return rows

    def layers(self, first: int, last: int) -> np.ndarray:
        """The rows of layers [first, last), (rows, last - first, top_k), a compact copy.

        For one pipeline rank: only its own layers leave this object.
        """
        if not 0 <= first <= last <= self.num_layers:
            raise ValueError(f"layers [{first}, {last}) are not within [0, {self.num_layers})")
        return self._buffer[: self._num_rows, first:last].copy()
