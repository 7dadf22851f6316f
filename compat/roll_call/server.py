"""The launcher's side of the roll call: a TCP server on one thread per process of the run."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import socketserver
import sysconfig
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from miles_periodic.compat.binding import Binding
from miles_periodic.compat.roll_call import wire
from miles_periodic.compat.roll_call.roll import Entry, Failure, Roll
from miles_periodic.hooks.errors import RollCallError


class RollCallServer:
    """Listens for the processes of one run; `failed` is set by the first failure.

    host: the address that the run's nodes can reach; loopback for a run on one node.
    notify: called with every notice that a process sends, on the server's threads.
    on_phase: called with name, step, began and seconds of every phase of the run's driver.
    """

    def __init__(
        self,
        bindings: Sequence[Binding],
        *,
        run_id: str,
        host: str = "127.0.0.1",
        notify: Callable[[str], None] = print,
        on_phase: Callable[[dict[str, Any]], None] = lambda phase: None,
    ) -> None:
        self.run_id = run_id
        self.token = secrets.token_hex(16)
        self.roll = Roll(bindings)
        self.failed = threading.Event()
        self._notify = notify
        self._on_phase = on_phase
        self._lock = threading.Lock()
        #: Open connections, each with the process at its other end once that has said hello.
        self.lines: dict[socket.socket, Entry | None] = {}
        self._server = _Listener((host, 0), _Line)
        self._server.owner = self
        self.address = f"{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )

    def __enter__(self) -> RollCallServer:
        self._thread.start()
        return self

    def __exit__(self, *exception) -> None:
        self._server.shutdown()
        self._server.server_close()
        for line in tuple(self.lines):
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def require_joined(self, patience_seconds: float = 2.0) -> None:
        """RollCallError where no process of a run with bindings has said hello by then.

        The boot line did not run.
        """
        if self.roll.bindings and not _becomes_true(
            lambda: bool(self.roll.entries), patience_seconds
        ):
            raise RollCallError(
                "No process of the run joined the roll call: nothing was bound in any.",
                expected="a Python whose site-packages hold miles_periodic_boot.pth",
                found=f"none in {sysconfig.get_path('purelib')} that ran",
                remedy="Install miles-periodic with pip into the environment that runs, not with "
                "--target or by PYTHONPATH: Python runs .pth files of site-packages only.",
            )

    def require_applied(self, patience_seconds: float = 2.0) -> None:
        """RollCallError where some binding of the run is in place in no process by then.

        For runs whose processes import every target; `roll.missing` asks by role.
        """
        self.require_joined(patience_seconds)
        if not _becomes_true(lambda: not self.roll.never_applied(), patience_seconds):
            raise RollCallError(
                f"Not in place in any process: {', '.join(self.roll.never_applied())}.",
                expected="every binding of the run applied",
                found=f"{len(self.roll.entries)} processes without",
                remedy="Report it with the output of `miles plan`; nothing that this run says "
                "about the feature holds.",
            )

    def hear_out(self, pid: int, patience_seconds: float = 30.0) -> None:
        """Wait until all that an ended local process said was recorded.

        Connections are taken in the order in which they were made: once one of our own was, that
        of the process was too, if it ever made one.
        """
        with socket.create_connection(self._server.server_address, patience_seconds) as last:
            own = last.getsockname()
            _becomes_true(lambda: self._heard_out(pid, own), patience_seconds)

    def _heard_out(self, pid: int, own: tuple[str, int]) -> bool:
        lines = tuple(self.lines.items())
        if own not in (_peer_of(line) for line, _ in lines):
            return False
        others = [entry for line, entry in lines if _peer_of(line) != own]
        return not any(entry is None or (entry.is_local and entry.pid == pid) for entry in others)

    def fail(self, failure: Failure) -> None:
        """Record a failure; the launcher ends the run."""
        with self._lock:
            self.roll.failures.append(failure)
        self.failed.set()

    def admit(self, message: dict[str, Any]) -> Entry | None:
        """Enter a process that said a valid hello; None turns it away."""
        token = str(message.get("token", ""))
        if not hmac.compare_digest(token, self.token) or message.get("run_id") != self.run_id:
            return None
        entry = Entry(message["host"], message["pid"], message["title"])
        with self._lock:
            self.roll.entries.append(entry)
        return entry

    def hear(self, entry: Entry, message: dict[str, Any]) -> dict[str, Any] | None:
        """Record one message of an admitted process; the answer, where it wants one."""
        kind = message["kind"]
        with self._lock:
            if kind == wire.APPLIED:
                entry.applied.append(message["binding"])
            elif kind == wire.IN_SOURCES:
                entry.in_sources.update(message["bindings"])
            elif kind == wire.CONSULTED:
                entry.consulted.update(message["counts"])
                entry.title = message["title"]
            elif kind == wire.MUSTER:
                self.roll.was_mustered = True
                self.roll.expect(message.get("roles", ()))
                return {"missing": self.roll.missing()}
        if kind == wire.FAILED:
            process = (
                f"{self.roll.role(entry)} (pid {entry.pid} on {entry.host}: {entry.title[:60]})"
            )
            self.fail(Failure(message["binding"], process, message["reason"]))
        elif kind == wire.NOTICE:
            self._notify(message["text"])
        elif kind == wire.PHASE:
            self._on_phase({key: message[key] for key in ("name", "step", "began", "seconds")})
        return None


def _becomes_true(is_so: Callable[[], bool], patience_seconds: float) -> bool:
    """Whether `is_so()` within that time."""
    end = time.monotonic() + patience_seconds
    while not (so := is_so()) and time.monotonic() < end:
        time.sleep(0.01)
    return so


def _peer_of(line: socket.socket) -> tuple[str, int] | None:
    """The other end of a connection; None once it is closed."""
    try:
        return line.getpeername()
    except OSError:
        return None


class _Listener(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 256
    owner: RollCallServer

    def process_request(self, request: socket.socket, client_address: Any) -> None:
        self.owner.lines[request] = None
        super().process_request(request, client_address)


class _Line(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        owner: RollCallServer = self.server.owner
        entry: Entry | None = None
        with contextlib.suppress(OSError):
            while line := self.rfile.readline(wire.MAX_LINE_BYTES):
                try:
                    message = wire.unpack(line)
                    if entry is None:
                        entry = owner.lines[self.connection] = owner.admit(message)
                        answer = None
                    else:
                        answer = owner.hear(entry, message)
                except (ValueError, KeyError, TypeError):
                    break
                if entry is None:
                    break
                if answer is not None:
                    self.wfile.write(wire.pack("answer", **answer))
        if entry is not None:
            entry.alive = False
        owner.lines.pop(self.connection, None)
