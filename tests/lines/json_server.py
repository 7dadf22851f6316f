"""A web server on the loopback that answers JSON: what the small servers of tests stand on."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class JsonServer:
    """A subclass says in `get`, `post` and `delete` what is answered; None is status 404.

    It runs from its making on; `close`, or leaving a `with`, ends it. port, url: its address.
    """

    #: `HTTP/1.1` keeps connections open.
    protocol_version = "HTTP/1.0"

    def __init__(self) -> None:
        handler = type("Handler", (_Handler,), {"owner": self})
        handler.protocol_version = self.protocol_version
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.port = self._http.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def get(self, path: str) -> Any:
        """The answer to a GET."""
        return None

    def post(self, path: str, body: Any) -> Any:
        """The answer to a POST of JSON."""
        return None

    def delete(self, path: str) -> Any:
        """The answer to a DELETE."""
        return None

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Handler(BaseHTTPRequestHandler):
    owner: JsonServer

    def do_GET(self) -> None:
        self._answer(self.owner.get(self.path))

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer(self.owner.post(self.path, json.loads(text or "null")))

    def do_DELETE(self) -> None:
        self._answer(self.owner.delete(self.path))

    def _answer(self, content: Any) -> None:
        text = json.dumps(content).encode()
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *words: object) -> None:
        """Nothing: tests look at what was asked."""
