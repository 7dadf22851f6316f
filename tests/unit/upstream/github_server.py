"""A server that speaks as much of GitHub's API as is asked of it, on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeGitHub:
    """Issues by path, the requests that came, and refusals that come before the next answers.

    issues: path to body, or to a status. refusals: (status, headers) of the next requests.
    """

    def __init__(self) -> None:
        self.issues: dict[str, Any] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.refusals: list[tuple[int, dict[str, str]]] = []
        self.url = ""

    def answer(self, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        self.requests.append((path, headers))
        if self.refusals:
            return *self.refusals.pop(0), b"{}"
        body = self.issues.get(path, 404)
        if isinstance(body, int):
            return body, {}, b"{}"
        text = json.dumps(body)
        etag = f'W/"{hash(text)}"'
        if headers.get("if-none-match") == etag:
            return 304, {"ETag": etag}, b""
        return 200, {"ETag": etag, "Content-Type": "application/json"}, text.encode()


@contextmanager
def running() -> Iterator[FakeGitHub]:
    """The server, at `url` as long as the block runs."""
    fake = FakeGitHub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, answered, body = fake.answer(self.path, headers)
            self.send_response(status)
            for name, value in {**answered, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
