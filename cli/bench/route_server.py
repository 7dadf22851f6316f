"""The server's half of a turn's routes, in a process of its own: gather, encode, answer.

It does what SGLang does after a request finished, hop by hop and with the same libraries: rows are
gathered from a host buffer by KV slot, pickled from the scheduler to the detokenizer, turned into
base64 text, pickled on to the tokenizer, and sent in a JSON answer. No model runs, so that nothing
else is on its clock.
"""

from __future__ import annotations

import json
import multiprocessing
import pickle
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pybase64

from miles_periodic.plugins.delta_router_replay import wire

try:
    from orjson import dumps

    JSON_LIBRARY = "orjson, as SGLang"
except ImportError:
    JSON_LIBRARY = "the standard library's; SGLang's orjson is not installed"

    def dumps(answer: dict[str, Any]) -> bytes:
        return json.dumps(answer).encode()


CPU_HEADER = "X-CPU-Seconds"
UP_SECONDS = 60


@dataclass(frozen=True, slots=True)
class SequenceShape:
    """Shape of the routes of a sequence: (num_rows, num_layers, top_k) of num_experts."""

    num_rows: int
    num_layers: int
    top_k: int
    num_experts: int

    def routes(self) -> np.ndarray:
        """Random routes, int32: the experts of a row and layer differ, as a router's do."""
        draw = np.random.default_rng(0)
        size = (self.num_rows, self.num_layers, 1)
        first = draw.integers(self.num_experts, size=size, dtype=np.int32)
        stride = draw.integers(1, self.num_experts // self.top_k, size=size, dtype=np.int32)
        return (first + stride * np.arange(self.top_k, dtype=np.int32)) % self.num_experts


class RouteServer:
    """The process; inside the `with`, `port` answers on the loopback."""

    def __init__(self, shape: SequenceShape) -> None:
        context = multiprocessing.get_context("spawn")
        self._near, far = context.Pipe()
        self._process = context.Process(target=_serve, args=(shape, far), daemon=True)
        self.port = 0

    def __enter__(self) -> RouteServer:
        self._process.start()
        if not self._near.poll(UP_SECONDS):
            self.__exit__()
            raise TimeoutError(f"the route server did not come up within {UP_SECONDS} s")
        self.port = self._near.recv()
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.terminate()
        self._process.join()


def _serve(shape: SequenceShape, pipe: Connection) -> None:
    server = HTTPServer(("127.0.0.1", 0), _Answer)
    draw = np.random.default_rng(1)
    slots = draw.permutation(shape.num_rows)
    host_buffer = np.empty((shape.num_rows, shape.num_layers, shape.top_k), np.int32)
    host_buffer[slots] = shape.routes()
    server.shape, server.slots, server.host_buffer = shape, slots, host_buffer
    pipe.send(server.server_port)
    server.serve_forever()


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        began = time.process_time()
        body = _answer(self.server, asked["routed_experts_start_len"], asked["compact"])
        seconds = time.process_time() - began
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header(CPU_HEADER, repr(seconds))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *parts: object) -> None:
        """Nothing: the table is the output."""


def _answer(server: HTTPServer, start: int, compact: bool) -> bytes:
    rows = server.host_buffer[server.slots[start:]]
    if compact:
        rows = wire.encode(rows, start, server.shape.num_experts)
    in_detokenizer = pickle.loads(pickle.dumps(rows, protocol=pickle.HIGHEST_PROTOCOL))
    text = pybase64.b64encode(in_detokenizer.tobytes()).decode()
    in_tokenizer = pickle.loads(pickle.dumps(text, protocol=pickle.HIGHEST_PROTOCOL))
    return dumps({"meta_info": {"routed_experts": in_tokenizer}})
