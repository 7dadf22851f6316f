"""A process's side of the roll call."""

from __future__ import annotations

import atexit
import os
import select
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from miles_periodic.compat.roll_call import wire
from miles_periodic.compat.roll_call.roles import title_of

if TYPE_CHECKING:
    from miles_periodic.compat.apply import Applied
    from miles_periodic.compat.binding import Binding
    from miles_periodic.compat.manifest import RunManifest

#: Long enough for the kernel to ask three times, where many processes join at once.
CONNECT_TIMEOUT_SECONDS = 10.0
ANSWER_TIMEOUT_SECONDS = 30.0
WATCH_INTERVAL_SECONDS = 1.0
#: Exit status of a process that ends itself: it must not compute anything without its bindings.
ENDED_STATUS = 70


class Member:
    """This process in the roll call of one run.

    A process that imports no target may be out of reach of the launcher (a sandbox without a
    network, say) and goes on; one that has a binding to report must reach it, or stops.
    """

    def __init__(self, manifest: RunManifest) -> None:
        self.manifest = manifest
        self._applied: list[Applied] = []
        self._in_sources: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._reported: tuple[Counter[str], str] = (Counter(), "")
        self._lock = threading.RLock()
        self._line: socket.socket | None = None
        self._was_refused = False
        self._unapplied_before: set[str] = set()
        os.register_at_fork(after_in_child=self._after_fork)
        atexit.register(self._report_last_counts)

    def join(self) -> None:
        """Introduce this process, and watch over its bindings from now on."""
        self.say_hello()
        self._start_watch()

    def say_hello(self) -> bool:
        """Connect and introduce this process; False where the launcher is out of reach."""
        host, _, port = self.manifest.roll_call.rpartition(":")
        try:
            self._line = socket.create_connection((host, int(port)), CONNECT_TIMEOUT_SECONDS)
        except OSError as error:
            self._line, self._was_refused = None, isinstance(error, ConnectionRefusedError)
            return False
        self._line.settimeout(ANSWER_TIMEOUT_SECONDS)
        self._line.set_inheritable(False)
        introduced = self._send(
            wire.HELLO,
            token=self.manifest.token,
            run_id=self.manifest.run_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            title=title_of(os.getpid()),
        )
        for applied in self._applied:  # a forked child takes over what its parent applied
            self._send(wire.APPLIED, binding=applied.binding.name)
        if self._in_sources:
            self._send(wire.IN_SOURCES, bindings=sorted(self._in_sources))
        return introduced

    def report_applied(self, binding: Binding, applied: Applied) -> None:
        """Tell the launcher that a binding is in place, and watch over it from now on."""
        with self._lock:
            self._applied.append(applied)
        self._tell(wire.APPLIED, binding=binding.name)

    def report_in_sources(self, names: Sequence[str]) -> None:
        """Tell the launcher which of the applied bindings a patched module has put in by itself."""
        with self._lock:
            applied = {each.binding.name for each in self._applied} & set(names)
            self._in_sources |= applied
        if applied:
            self._tell(wire.IN_SOURCES, bindings=sorted(applied))

    def report_failure(self, name: str, reason: str) -> None:
        """Tell the launcher that a binding is not in place; the run will be ended."""
        self._tell(wire.FAILED, binding=name, reason=reason)

    def notice(self, text: str) -> None:
        """Put a line before the user, through the launcher."""
        self._tell(wire.NOTICE, text=text)

    def report_phase(self, name: str, step: int | None, began: float, seconds: float) -> None:
        """Tell the launcher what part of the run is over; seconds < 0: it has only begun."""
        self._tell(wire.PHASE, name=name, step=step, began=began, seconds=seconds)

    def muster(self, roles: Sequence[str] = ()) -> list[str]:
        """What the launcher still misses: sentences that name bindings and roles.

        roles: those that not every run has and this one does.
        """
        with self._lock:
            self._tell(wire.MUSTER, roles=list(roles))
            try:
                with self._line.makefile("rb") as answers:
                    return wire.unpack(answers.readline(wire.MAX_LINE_BYTES))["missing"]
            except (OSError, ValueError, KeyError) as error:
                return [f"the launcher did not answer the muster ({error})"]

    def count(self, name: str) -> None:
        """Note that a binding was consulted once more; reported by the watch."""
        self._counts[name] += 1

    def _tell(self, kind: str, **parts) -> None:
        if not self._has_line():
            self._stop("the launcher's roll call cannot be reached")
        if not self._send(kind, **parts):
            self._stop("the launcher's roll call broke off")

    def _has_line(self) -> bool:
        """Whether there is a line to the launcher, after another try where there was none."""
        with self._lock:
            return self._line is not None or self.say_hello()

    def _send(self, kind: str, **parts) -> bool:
        try:
            with self._lock:
                self._line.sendall(wire.pack(kind, **parts))
            return True
        except OSError:
            return False

    def _start_watch(self) -> None:
        threading.Thread(
            target=self._keep_watch, name="miles-periodic-roll-call", daemon=True
        ).start()

    def _keep_watch(self) -> None:
        pause = threading.Event()
        while not pause.wait(WATCH_INTERVAL_SECONDS):
            if self._launcher_is_gone():
                self._stop("the launcher is gone")
            for name, reason in self._broken():
                # Said first: a launcher that is told ends this process, in the middle of a word.
                self._say(f"the binding {name}: {reason}")
                self.report_failure(name, reason)
                os._exit(ENDED_STATUS)
            self._report_changes()

    def _launcher_is_gone(self) -> bool:
        """Whether the launcher ended or was killed, where that ends this process, too.

        Its end of the line was closed; or there is no line, for this process began while the
        launcher ended, and nobody is at the address.
        """
        if not self._applied and not self.manifest.ends_with_launcher:
            return False
        if self._line is None:
            return not self._has_line() and self._was_refused
        return self._line_was_closed()

    def _line_was_closed(self) -> bool:
        line = self._line
        if not self._lock.acquire(blocking=False):
            return False
        try:
            readable, _, _ = select.select([line], [], [], 0)
            return bool(readable) and line.recv(1, socket.MSG_PEEK) == b""
        except (OSError, ValueError):
            return True
        finally:
            self._lock.release()

    def _broken(self) -> Iterator[tuple[str, str]]:
        """Bindings that should be in place in this process and are not, with the reason.

        A module counts as imported when two looks in a row find it executed: the hook runs
        right after, on the importing thread.
        """
        for applied in tuple(self._applied):
            if not applied.in_place():
                yield applied.binding.name, "something replaced it after it was applied"
        names = {applied.binding.name for applied in self._applied}
        unapplied = {
            b.name for b in self.manifest.bindings if b.name not in names and _executed(b.module)
        }
        for name in unapplied & self._unapplied_before:
            yield name, self._why_not_applied(name)
        self._unapplied_before = unapplied

    def _why_not_applied(self, name: str) -> str:
        reason = "its module was imported and it was not applied"
        if name not in self.manifest.in_sources:
            return reason
        return f"{reason}: it is in the sources on the launcher's node and not in those of this one"

    def _report_changes(self) -> None:
        """Send counts and title where they changed; a process without bindings need not arrive."""
        now = (Counter(self._counts), title_of(os.getpid()))
        if now == self._reported:
            return
        self._reported = now
        parts = {"counts": dict(now[0]), "title": now[1]}
        if self._applied or now[0]:
            self._tell(wire.CONSULTED, **parts)
        elif self._line is not None:
            self._send(wire.CONSULTED, **parts)

    def _report_last_counts(self) -> None:
        if self._line is not None and self._counts:
            self._send(wire.CONSULTED, counts=dict(self._counts), title=title_of(os.getpid()))

    def _after_fork(self) -> None:
        self._line, self._lock = None, threading.RLock()
        self._counts, self._reported = Counter(), (Counter(), "")
        # At once, not from the watch: a child may go into native code that keeps the GIL for good.
        self.say_hello()
        self._start_watch()

    def _say(self, reason: str) -> None:
        # One piece, where `print` writes a line and its end apart.
        sys.stderr.write(f"miles-periodic: process {os.getpid()} ends: {reason}.\n")
        sys.stderr.flush()

    def _stop(self, reason: str) -> None:
        self._say(reason)
        os._exit(ENDED_STATUS)


def _executed(module: str) -> bool:
    """Whether a module has been imported in this process and its import is over."""
    spec = getattr(sys.modules.get(module), "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)
