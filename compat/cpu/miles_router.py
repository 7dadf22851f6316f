"""One real process of Miles's Python router, before servers that run already."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from miles_periodic.compat.binding import Binding
from miles_periodic.compat.cpu.environment import LOOPBACK, cpu_environment
from miles_periodic.compat.cpu.free_port import free_port
from miles_periodic.compat.manifest import FeatureReference, RunManifest
from miles_periodic.compat.roll_call.server import RollCallServer
from miles_periodic.hooks.errors import PeriodicError

UP_SECONDS = 300
_PROGRAM = f"""
import sys
from types import SimpleNamespace
from miles.router.router import run_router
run_router(SimpleNamespace(
    sglang_router_ip={LOOPBACK!r}, sglang_router_port=int(sys.argv[1]),
    miles_router_max_connections=64, miles_router_timeout=None, miles_router_middleware_paths=[],
    rollout_health_check_interval=30.0, miles_router_health_check_failure_threshold=3,
))
"""


@dataclass(frozen=True, slots=True)
class RouterSetup:
    """What a router is started with.

    urls: of the servers behind it. bindings, features: what its process applies.
    path: folders in front of its Python's path: a tree of Miles other than the installed one.
    """

    urls: Sequence[str]
    bindings: Sequence[Binding] = ()
    features: Sequence[FeatureReference] = ()
    path: Sequence[str | Path] = ()


class MilesRouterProcess:
    """A running router; leaving the `with` ends it.

    log: file that takes what it prints. notices: what its process said to the user.
    """

    def __init__(self, setup: RouterSetup, log: Path) -> None:
        self.setup, self.log = setup, log
        self.port = free_port()
        self.url = f"http://{LOOPBACK}:{self.port}"
        self.notices: list[str] = []
        self.roll_call = RollCallServer(
            setup.bindings, run_id=f"router-{os.getpid()}-{self.port}", notify=self.notices.append
        )
        self._process: subprocess.Popen | None = None

    def __enter__(self) -> MilesRouterProcess:
        self.roll_call.__enter__()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(self.port)],
                env={**os.environ, **cpu_environment(), **self._own_variables()},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._wait()
            for url in self.setup.urls:
                with urllib.request.urlopen(self._add(url), timeout=30) as response:
                    json.load(response)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _own_variables(self) -> dict[str, str]:
        manifest = RunManifest(
            self.roll_call.run_id,
            self.roll_call.address,
            self.roll_call.token,
            features=tuple(self.setup.features),
            bindings=self.roll_call.roll.bindings,
            ends_with_launcher=True,
        )
        inherited = os.environ.get("PYTHONPATH", "").split(":")
        folders = [*map(str, self.setup.path), *filter(None, inherited)]
        return {**manifest.environment(), "PYTHONPATH": ":".join(folders)}

    def _add(self, url: str) -> urllib.request.Request:
        return urllib.request.Request(f"{self.url}/add_worker?url={url}", b"{}", method="POST")

    def _wait(self) -> None:
        end = time.monotonic() + UP_SECONDS
        while self._process.poll() is None and time.monotonic() < end:
            try:
                with urllib.request.urlopen(f"{self.url}/list_workers", timeout=5):
                    pass
            except OSError:
                time.sleep(0.2)
                continue
            self.roll_call.require_joined()
            return
        raise PeriodicError(
            "The router did not come up.",
            expected=f"an answer within {UP_SECONDS} s",
            found="\n".join(self.log.read_text(errors="replace").splitlines()[-30:]),
            remedy=f"Read {self.log}.",
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)
        self.roll_call.__exit__()
