"""SGLang 0.5.11, which declares the start of routes and never reads it, with our bindings."""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from miles_periodic.compat.catalog import bindings_for
from miles_periodic.compat.cpu import tiny_model
from miles_periodic.compat.cpu.environment import cpu_environment
from miles_periodic.compat.manifest import RunManifest
from miles_periodic.compat.roll_call.server import RollCallServer

pytestmark = pytest.mark.real

CACHE = Path(__file__).parents[2] / ".cache" / "site"
VERSION = "0.5.11"
#: What this release of SGLang needs in other versions than the rehearsal's environment has.
OLDER = ("transformers==5.6.0", "tokenizers==0.22.2", "huggingface_hub==1.7.0", "soundfile==0.13.1")
STAND_INS = "miles_periodic.compat.cpu.pinned_memory:STAND_INS"
UP_SECONDS = 240
TOKENS = list(range(20, 60))


@pytest.fixture(scope="module")
def path(unpacked):
    """What stands in front of the path of a process that runs this release."""
    folder = CACHE / f"sglang-{VERSION}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            subprocess.run(
                [*command, "--target", f"{folder}.part", *OLDER], check=True, timeout=600
            )
            Path(f"{folder}.part").rename(folder)
    return [str(folder), str(unpacked("sglang", VERSION, "3.11"))]


def free_port():
    """A free port that leaves room for the one 10,000 above it, which SGLang takes for gRPC."""
    for port in range(21_000, 50_000, 7):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
    pytest.fail("no port is free")


class Server:
    """One server under a roll call, and what it answers."""

    def __init__(self, path, model, bindings, log):
        self.roll_call = RollCallServer(bindings, run_id=f"backport-{os.getpid()}-{len(bindings)}")
        self.path, self.model, self.log = path, model, log

    def __enter__(self):
        self.roll_call.__enter__()
        manifest = RunManifest(
            self.roll_call.run_id,
            self.roll_call.address,
            self.roll_call.token,
            bindings=self.roll_call.roll.bindings,
            stand_ins=STAND_INS,
            ends_with_launcher=True,
        )
        own = {**cpu_environment(), **manifest.environment(), "PYTHONPATH": ":".join(self.path)}
        self.port = free_port()
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "sglang.launch_server", "--model-path", self.model,
                "--device", "cpu", "--host", "127.0.0.1", "--port", str(self.port),
                "--max-total-tokens", "4096", "--max-running-requests", "4",
                "--mem-fraction-static", "0.3", "--grammar-backend", "none",
                "--enable-return-routed-experts", "--disable-overlap-schedule",
            ],
            env={**os.environ, **own}, stdout=self.log, stderr=self.log, start_new_session=True,
        )  # fmt: skip
        self._wait()
        return self

    def _wait(self):
        end = time.monotonic() + UP_SECONDS
        while self.process.poll() is None and time.monotonic() < end:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    return
            except OSError:
                time.sleep(1)
        self.__exit__()
        pytest.fail(f"the server did not come up; see {self.log.name}")

    def __exit__(self, *exception):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
        self.roll_call.__exit__()

    def rows(self, tokens, start):
        request = {
            "input_ids": tokens,
            "sampling_params": {"max_new_tokens": 4, "temperature": 0.0, "ignore_eos": True},
            "return_routed_experts": True,
            "routed_experts_start_len": start,
        }
        post = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/generate",
            json.dumps(request).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(post, timeout=60) as response:
            text = json.load(response)["meta_info"]["routed_experts"]
        model = tiny_model.TinyModel()
        shape = (-1, model.num_hidden_layers, model.num_experts_per_tok)
        return np.frombuffer(base64.b64decode(text), np.int32).reshape(shape)


@pytest.fixture
def serve(path, tmp_path):
    model = tmp_path / "model"
    tiny_model.write(model)

    def start(bindings):
        return Server(path, model, bindings, open(tmp_path / "server.log", "wb"))

    return start


def test_a_delta_equals_the_suffix_of_all_rows_and_the_roll_call_shows_who_made_it(serve):
    with serve(bindings_for("delta-router-replay", "sglang")) as server:
        full = server.rows(TOKENS, 0)
        assert len(full) == len(TOKENS) + 4 - 1
        delta = server.rows(TOKENS, 30)
        assert delta.tobytes() == full[30:].tobytes()
        assert len(server.rows(TOKENS, len(TOKENS))) == 3
        assert server.roll_call.roll.never_consulted() == []
        roles = {row["role"] for row in server.roll_call.roll.rows()}
        assert "scheduler" in roles
    assert not server.roll_call.roll.failures


def test_without_the_bindings_the_start_is_ignored(serve):
    with serve(()) as server:
        assert len(server.rows(TOKENS, 30)) == len(TOKENS) + 4 - 1
