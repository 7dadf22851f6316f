"""A real sglang-router in front of a pair, as Miles starts and fills it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from miles_periodic.compat.cpu.environment import LOOPBACK
from miles_periodic.compat.cpu.free_port import free_port
from miles_periodic.compat.cpu.sglang_pair import SGLangPair

UP_SECONDS = 240


class Router:
    """The router of a pair; leaving the `with` ends it. url: its address."""

    def __init__(self, pair: SGLangPair, log: Path) -> None:
        self.pair, self.log, self.port = pair, log, free_port()
        self.url = f"http://{LOOPBACK}:{self.port}"

    def __enter__(self) -> Router:
        command = [sys.executable, "-m", "sglang_router.launch_router", "--pd-disaggregation"]
        command += ["--host", LOOPBACK, "--port", str(self.port), "--policy", "random"]
        command += ["--prometheus-port", str(free_port())]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            self._fill()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.wait(30)

    def _fill(self) -> None:
        """Add both servers the way Miles's engines do, and wait until they are taken."""
        workers = [
            {
                "url": self.pair.prefill.url,
                "worker_type": "prefill",
                "bootstrap_port": self.pair.bootstrap_port,
            },
            {"url": self.pair.decode.url, "worker_type": "decode"},
        ]
        end = time.monotonic() + UP_SECONDS
        while time.monotonic() < end:
            try:
                known = self.ask("/workers")["workers"]
                if len([w for w in known if w["is_healthy"]]) == len(workers):
                    return
                for worker in workers:
                    if worker["url"] not in [each["url"] for each in known]:
                        self.ask("/workers", worker)
            except OSError:
                pass
            time.sleep(1)
        raise TimeoutError(f"the router has not taken its workers: see {self.log}")

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The answer to a GET, or to a POST of JSON where there is a body."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        with urllib.request.urlopen(
            urllib.request.Request(self.url + path, data, headers), timeout=240
        ) as response:
            return json.load(response)
