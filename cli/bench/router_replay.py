"""`miles bench router-replay`: bytes and CPU time of one turn's routes, in every form."""

from __future__ import annotations

import http.client
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pybase64
import typer

from miles_periodic.cli.bench.route_server import (
    CPU_HEADER,
    JSON_LIBRARY,
    RouteServer,
    SequenceShape,
)
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.delta_router_replay import RouteRows

GOAL = 100.0


@dataclass(frozen=True, slots=True)
class Form:
    """How a turn's routes are asked for."""

    name: str
    delta: bool
    compact: bool


FORMS = (
    Form("full", delta=False, compact=False),
    Form("delta", delta=True, compact=False),
    Form("delta + compact", delta=True, compact=True),
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer. payload_bytes: base64 text; the rest in milliseconds of CPU time."""

    payload_bytes: int
    server_ms: float
    client_ms: float


def router_replay_command(
    held: Annotated[int, typer.Option(min=1, help="Rows that the client holds.")] = 30_000,
    new: Annotated[int, typer.Option(min=1, help="Rows that the turn adds.")] = 1_200,
    layers: Annotated[int, typer.Option(min=1, help="Layers of the model.")] = 61,
    top_k: Annotated[int, typer.Option(min=1, help="Experts per token and layer.")] = 8,
    experts: Annotated[
        int, typer.Option(min=2, max=1 << 16, help="Experts of a layer; over 256 take two bytes.")
    ] = 256,
    repeats: Annotated[int, typer.Option(min=1, help="Turns of each form, interleaved.")] = 7,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure one turn's routes as full rows, as a delta, and as a compact delta.

    A process of its own does what the server does after a request finished; this one does what
    the client does: JSON, base64, checks, append. Exits with 1 where delta + compact is not 100
    times cheaper than full, in bytes and in CPU time.
    """
    from miles_periodic.cli.bench.table import show

    if top_k > experts // 2:
        raise PeriodicError(
            f"No routes have top {top_k} of {experts} experts.",
            expected=f"--top-k up to {experts // 2}",
            found=str(top_k),
            remedy="Give fewer experts per token, or more experts.",
        )
    shape = SequenceShape(held + new, layers, top_k, experts)
    result = measure(shape, held, repeats)
    show(f"Routes of a turn that adds {new:,} rows to {held:,}", result, json_output)
    best = result["rows"][-1]
    if min(best["bytes_ratio"], best["cpu_ratio"]) < GOAL:
        raise typer.Exit(1)


def measure(shape: SequenceShape, held: int, repeats: int) -> dict[str, Any]:
    """Medians over interleaved turns, and how many times cheaper than full each form is."""
    turns: dict[str, list[Turn]] = {form.name: [] for form in FORMS}
    with RouteServer(shape) as server:
        client = _Client(server.port, shape, held)
        for form in FORMS:
            client.turn(form)
        for _ in range(repeats):
            for form in FORMS:
                turns[form.name].append(client.turn(form))
    full = turns["full"]
    return {
        "rows": [_row(name, mine, full) for name, mine in turns.items()],
        "model": f"{shape.num_layers} layers, top {shape.top_k} of {shape.num_experts} experts",
        "json_written_by": JSON_LIBRARY,
        "goal": f"delta + compact {GOAL:.0f} times cheaper than full, in bytes and CPU time",
    }


def _row(name: str, mine: list[Turn], full: list[Turn]) -> dict[str, Any]:
    server, client = _median(mine, "server_ms"), _median(mine, "client_ms")
    total = _median(full, "server_ms") + _median(full, "client_ms")
    return {
        "form": name,
        "payload_bytes": mine[0].payload_bytes,
        "server_cpu_ms": server,
        "client_cpu_ms": client,
        "bytes_ratio": full[0].payload_bytes / mine[0].payload_bytes,
        "cpu_ratio": total / (server + client),
    }


def _median(turns: list[Turn], field: str) -> float:
    return statistics.median(getattr(turn, field) for turn in turns)


class _Client:
    """Holds `held` rows of the sequence and takes the rest of it, turn after turn."""

    def __init__(self, port: int, shape: SequenceShape, held: int) -> None:
        self.shape, self.held = shape, held
        self.connection = http.client.HTTPConnection("127.0.0.1", port)
        self.routes = shape.routes()
        self.rows: RouteRows

    def turn(self, form: Form) -> Turn:
        """Ask, decode, and check that the whole sequence is what was routed."""
        start = self.held if form.delta else 0
        body = json.dumps({"routed_experts_start_len": start, "compact": form.compact})
        self.connection.request("POST", "/generate", body)
        response = self.connection.getresponse()
        content = response.read()
        self._hold()
        take: Callable[[str], np.ndarray] = self._append if form.delta else self._decode
        began = time.process_time()
        payload = json.loads(content)["meta_info"]["routed_experts"]
        rows = take(payload)
        client_ms = (time.process_time() - began) * 1e3
        if not np.array_equal(rows, self.routes):
            raise PeriodicError(
                f"The routes of form {form.name!r} are not those of the sequence.",
                remedy="Report this: a delta that differs from full rows trains on wrong routes.",
            )
        return Turn(len(payload), float(response.headers[CPU_HEADER]) * 1e3, client_ms)

    def _hold(self) -> None:
        """The rows that earlier turns left, in memory that has grown as a conversation's does."""
        shape = self.shape
        self.rows = RouteRows(shape.num_layers, shape.top_k, shape.num_experts)
        before = max(self.held - (shape.num_rows - self.held), 0)
        self.rows.append(0, self.routes[:before])
        self.rows.append(before, self.routes[before : self.held])

    def _decode(self, payload: str) -> np.ndarray:
        """What Miles does with full rows: nothing is checked and nothing is kept."""
        values = np.frombuffer(pybase64.b64decode(payload), np.int32)
        return values.reshape(-1, self.shape.num_layers, self.shape.top_k)

    def _append(self, payload: str) -> np.ndarray:
        self.rows.append(self.held, payload)
        return self.rows.array()
