"""One real SGLang server on the CPU, of the tree that stands first on its path."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from miles_periodic.compat.binding import Binding
from miles_periodic.compat.cpu.environment import LOOPBACK, cpu_environment
from miles_periodic.compat.cpu.free_port import RANK_PORTS, free_port
from miles_periodic.compat.manifest import FeatureReference, RunManifest
from miles_periodic.compat.roll_call.server import RollCallServer
from miles_periodic.hooks.errors import PeriodicError

#: What a server needs on a machine without a GPU, whatever its role.
STAND_INS = "miles_periodic.compat.cpu.stock_sglang:STAND_INS"
UP_SECONDS = 600
REQUEST_SECONDS = 120
FLAGS = (
    "--device", "cpu", "--host", LOOPBACK, "--max-total-tokens", "4096",
    "--max-running-requests", "8", "--mem-fraction-static", "0.3", "--grammar-backend", "none",
    "--enable-return-routed-experts",
)  # fmt: skip
#: A scheduler without requests otherwise takes a core. Not for ranks that wait for each other.
SLEEP = "--sleep-on-idle"


@dataclass(frozen=True, slots=True)
class ServerSetup:
    """What a server is started with.

    model: folder of a Hugging Face checkpoint, such as `tiny_model.write` makes.
    path: folders in front of its Python's path: the tree, and packages that only it needs.
    bindings, features, in_sources: what its processes apply, as a manifest has them.
    flags: further flags of `sglang.launch_server`; a later one wins over FLAGS.
    environment: variables besides those of a CPU run.
    stand_ins: catalog of CPU stand-ins, `module:attribute`.
    meter: folder into which its processes write what they send, or empty (see compat.meter).
    """

    model: Path
    path: Sequence[str | Path] = ()
    bindings: Sequence[Binding] = ()
    features: Sequence[FeatureReference] = ()
    flags: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    stand_ins: str = STAND_INS
    meter: str = ""
    in_sources: Sequence[str] = ()


class SGLangServer:
    """A running server; leaving the `with` ends all its processes.

    log: file that takes what its processes print. Entering raises PeriodicError where it does not
    come up in time, with the last lines of the log.
    """

    def __init__(self, setup: ServerSetup, log: Path) -> None:
        self.setup, self.log = setup, log
        self.port = free_port()
        self.url = f"http://{LOOPBACK}:{self.port}"
        run_id = f"server-{os.getpid()}-{self.port}"
        self.roll_call = RollCallServer(setup.bindings, run_id=run_id)
        self._process: subprocess.Popen | None = None

    @property
    def roll(self):
        """What its processes reported: rows, failures, bindings never consulted."""
        return self.roll_call.roll

    def __enter__(self) -> SGLangServer:
        self.start()
        try:
            self.wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the processes and return at once; for several servers that come up together."""
        self.roll_call.__enter__()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                env={**os.environ, **self.environment()},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def command(self) -> list[str]:
        """What is run in that environment."""
        command = [sys.executable, "-m", "sglang.launch_server", *FLAGS]
        command += ["--model-path", str(self.setup.model), "--port", str(self.port)]
        if "--dp" not in self.setup.flags:
            # SGLang would take a port of those that the kernel gives to connections, long before
            # it listens there.
            command += [SLEEP, "--nccl-port", str(free_port(RANK_PORTS))]
        return [*command, *self.setup.flags]

    def environment(self) -> dict[str, str]:
        """The variables that its first process needs besides those of whoever starts it."""
        manifest = RunManifest(
            self.roll_call.run_id,
            self.roll_call.address,
            self.roll_call.token,
            features=tuple(self.setup.features),
            bindings=self.roll.bindings,
            in_sources=tuple(self.setup.in_sources),
            stand_ins=self.setup.stand_ins,
            meter=self.setup.meter,
            ends_with_launcher=True,
        )
        return {
            **cpu_environment(),
            **manifest.environment(),
            "PYTHONPATH": ":".join([*map(str, self.setup.path), *_inherited_path()]),
            **self.setup.environment,
        }

    def wait(self, up_seconds: float = UP_SECONDS) -> None:
        """Return when the server is healthy and its processes have joined the roll call."""
        end = time.monotonic() + up_seconds
        while self.is_running and time.monotonic() < end:
            try:
                self.get("/health", timeout=5)
            except OSError:
                time.sleep(0.5)
                continue
            self.roll_call.require_joined()
            return
        raise PeriodicError(
            "The server did not come up.",
            expected=f"a healthy server within {up_seconds:.0f} s",
            found="\n".join(self.log.read_text(errors="replace").splitlines()[-30:]),
            remedy=f"Read {self.log}.",
        )

    def stop(self) -> None:
        """End all its processes, the way the kernel does."""
        if self._process is not None:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)
            self._process = None
            self.roll_call.__exit__()

    @property
    def is_running(self) -> bool:
        """Whether the server's first process lives."""
        return self._process is not None and self._process.poll() is None

    def get(self, path: str, timeout: float = REQUEST_SECONDS) -> Any:
        """The answer to a GET: JSON where it is JSON, text elsewhere."""
        return _answer(urllib.request.Request(self.url + path), timeout)

    def post(self, path: str, timeout: float = REQUEST_SECONDS, **body: Any) -> Any:
        """The answer to a POST of JSON; ServerRefusal where the status says that it failed."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        return _answer(request, timeout)

    def generate(self, tokens: Sequence[int], num_new_tokens: int = 4, **fields: Any) -> Any:
        """Greedy continuation of `tokens` by exactly `num_new_tokens`, with routed experts."""
        sampling = {"max_new_tokens": num_new_tokens, "temperature": 0.0, "ignore_eos": True}
        sampling.update(fields.pop("sampling_params", {}))
        body = {"input_ids": list(tokens), "sampling_params": sampling}
        return self.post("/generate", **{**body, "return_routed_experts": True, **fields})


def _inherited_path() -> list[str]:
    return [folder for folder in os.environ.get("PYTHONPATH", "").split(":") if folder]


class ServerRefusal(OSError):
    """A server answered a request with an error. status: of the response; text: its body."""

    def __init__(self, status: int, text: str) -> None:
        self.status, self.text = status, text
        super().__init__(f"{status}: {text}")


def _answer(request: urllib.request.Request, timeout: float) -> Any:
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            text = response.read().decode()
    except urllib.error.HTTPError as error:
        raise ServerRefusal(error.code, error.read().decode(errors="replace")) from error
    try:
        return json.loads(text)
    except ValueError:
        return text
