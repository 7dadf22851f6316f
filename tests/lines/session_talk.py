"""Sessions on a real session server: started, talked to, and made into samples."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from miles_periodic.compat.catalog import bindings_named
from miles_periodic.compat.cpu import tiny_model
from miles_periodic.compat.cpu.environment import LOOPBACK, cpu_environment
from miles_periodic.compat.cpu.free_port import free_port
from miles_periodic.compat.cpu.sglang_server import ServerRefusal
from miles_periodic.compat.manifest import FeatureReference, RunManifest
from miles_periodic.compat.plan import make_plan
from miles_periodic.compat.roll_call.server import RollCallServer
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.decisions import Inject
from miles_periodic.plugins import features

PROCESS = Path(__file__).with_name("session_process.py")
MODEL = tiny_model.TinyModel()
UP_SECONDS = 300
#: A chat template that leaves the opener of the next turn out where none is to be generated.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def bindings_on(tree: Tree, slugs: Sequence[str]) -> tuple:
    """The session server's bindings that the plan has for some features on a tree of Miles."""
    plan = make_plan(features(), slugs, {"miles": tree}, environment={})
    rows = [row.decision for row in plan.rows if row.upstream == "miles"]
    names = {n for row in rows if isinstance(row, Inject) for n in row.bindings}
    return bindings_named(name for name in names if name.startswith("session/"))


def references(slugs: Sequence[str]) -> tuple[FeatureReference, ...]:
    """The features as a manifest has them, at their default settings."""
    return tuple(FeatureReference.of(f, f.settings_model()) for f in features() if f.slug in slugs)


@dataclass(frozen=True)
class Kind:
    """Which session server: the module that has it, its tree, and arguments of its own."""

    module: str
    tree: Tree
    path: tuple[str, ...] = ()
    arguments: tuple[tuple[str, Any], ...] = ()


class SessionServer:
    """A running session server under a roll call; `slugs` names the features that are on."""

    def __init__(self, kind: Kind, backend_url: str, model: Path, slugs: Sequence[str], log: Path):
        self.kind, self.backend_url, self.log = kind, backend_url, log
        self.port = free_port()
        self.url = f"http://{LOOPBACK}:{self.port}"
        template = log.with_name("chat_template.jinja")
        template.write_text(CHAT_TEMPLATE)
        self.arguments = {
            "hf_checkpoint": str(model),
            "chat_template_path": str(template),
            "session_server_ip": LOOPBACK,
            "session_server_port": self.port,
            "tito_allowed_append_roles": ["user", "tool"],
            "use_session_server": True,
            "use_rollout_routing_replay": True,
            "pause_generation_mode": "retract",
            "num_layers": MODEL.num_hidden_layers,
            "moe_router_topk": MODEL.num_experts_per_tok,
            "num_experts": MODEL.num_experts,
            **dict(kind.arguments),
        }
        self.slugs = slugs
        bindings = bindings_on(kind.tree, slugs) if slugs else ()
        self.roll_call = RollCallServer(bindings, run_id=f"sessions-{os.getpid()}-{self.port}")
        self._process: subprocess.Popen | None = None

    def environment(self) -> dict[str, str]:
        manifest = RunManifest(
            self.roll_call.run_id,
            self.roll_call.address,
            self.roll_call.token,
            features=references(self.slugs),
            bindings=self.roll_call.roll.bindings,
            ends_with_launcher=True,
        )
        path = [*self.kind.path, *os.environ.get("PYTHONPATH", "").split(":")]
        gate = manifest.environment() if self.slugs else {}
        return {**os.environ, **cpu_environment(), **gate, "PYTHONPATH": ":".join(path)}

    def command(self, verb: str, **parts: Any) -> list[str]:
        return [sys.executable, str(PROCESS), verb, json.dumps(parts)]

    def __enter__(self) -> SessionServer:
        self.roll_call.__enter__()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(
                    "serve",
                    module=self.kind.module,
                    backend_url=self.backend_url,
                    arguments=self.arguments,
                ),
                env=self.environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait()
        return self

    def _wait(self) -> None:
        end = time.monotonic() + UP_SECONDS
        while self._process.poll() is None and time.monotonic() < end:
            try:
                self.ask("/health", method="GET")
                return
            except OSError:
                time.sleep(0.3)
        self.__exit__()
        raise AssertionError(self.log.read_text(errors="replace")[-3000:])

    def __exit__(self, *exception) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)
        self.roll_call.__exit__()

    def ask(self, path: str, method: str = "POST", **body: Any) -> Any:
        """The parsed answer; ServerRefusal where the status says that it failed."""
        content = self.ask_bytes(path, method, **body)
        return json.loads(content) if content else None

    def ask_bytes(self, path: str, method: str = "POST", **body: Any) -> bytes:
        """The answer as it came; ServerRefusal where the status says that it failed."""
        content = json.dumps(body).encode() if method == "POST" else None
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, content, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=240) as response:
                return response.read()
        except urllib.error.HTTPError as error:
            raise ServerRefusal(error.code, error.read().decode(errors="replace")) from error

    def open_session(self) -> Session:
        return Session(self, self.ask("/sessions")["session_id"])


class Session:
    """One session and its messages, as an agent has them."""

    def __init__(self, server: SessionServer, session_id: str) -> None:
        self.server, self.path = server, f"/sessions/{session_id}"
        self.messages: list[dict[str, Any]] = []

    def say(self, text: str, num_tokens: int = 8, **fields: Any) -> dict[str, Any]:
        """One turn: append the text, ask, and take the answer up."""
        messages = [*self.messages, {"role": "user", "content": text}]
        answer = self.server.ask(
            f"{self.path}/v1/chat/completions",
            **{"model": "tiny", "messages": messages, "max_tokens": num_tokens},
            **{"temperature": 0.0, "ignore_eos": True, **fields},
        )
        reply = answer["choices"][0]["message"]
        self.messages = [*messages, reply]
        return answer

    def records(self) -> list[dict[str, Any]]:
        return self.server.ask(self.path, method="GET")["records"]

    def metadata(self) -> dict[str, Any]:
        return self.server.ask(self.path, method="GET")["metadata"]

    def samples(self, to: Path) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and routes of the session's sample, made in a process of Miles 0.0.2."""
        parts = {"url": self.server.url + self.path, "to": str(to)}
        done = subprocess.run(
            self.server.command("samples", arguments=self.server.arguments, **parts),
            env=self.server.environment(),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        made = np.load(to)
        return made["tokens"], made["rows"]

    def decoded(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Tokens and routes of each sample in the reply of Miles main, which the driver decodes."""
        content = self.server.ask_bytes(f"{self.path}/samples")
        (length,) = struct.unpack("<Q", content[:8])
        header, data = json.loads(content[8 : 8 + length]), content[8 + length :]

        def tensor(name: str, dtype: str) -> np.ndarray:
            begin, end = header[name]["data_offsets"]
            return np.frombuffer(data[begin:end], dtype).reshape(header[name]["shape"])

        numbers = sorted(name.partition(".")[2] for name in header if name.startswith("tokens."))
        routed = "rollout_routed_experts"
        assert {header[f"{routed}.{n}"]["dtype"] for n in numbers} == {"I32"}
        return [(tensor(f"tokens.{n}", "<i8"), tensor(f"{routed}.{n}", "<i4")) for n in numbers]


def meta_of(record: dict[str, Any]) -> dict[str, Any]:
    """The meta information of a record's answer."""
    return record["response"]["choices"][0]["meta_info"]


__all__ = ["Kind", "ServerRefusal", "Session", "SessionServer", "meta_of"]
