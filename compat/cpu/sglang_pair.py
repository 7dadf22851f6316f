"""One prefill and one decode server on the CPU, and what crosses between them turn by turn."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from miles_periodic.compat.bindings.running_server import bootstrap_fields
from miles_periodic.compat.cpu.free_port import free_port
from miles_periodic.compat.cpu.sglang_server import ServerSetup, SGLangServer

STAND_INS = "miles_periodic.compat.cpu.prefill_decode:STAND_INS"
DECODE_CACHE = "--disaggregation-decode-enable-radix-cache"
#: Mooncake without RDMA.
ENVIRONMENT = {"MC_FORCE_TCP": "1"}
_FLAGS = ("--disaggregation-transfer-backend", "mooncake", "--enable-metrics")
_COUNTED = re.compile(r"^sglang:kv_transfer_total_mb_sum\{.*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Moved:
    """What crossed from prefill to decode, since both came up.

    engine_bytes: what the prefill server handed to the transfer engine, metadata included.
    kv_bytes: what SGLang counts as KV in its metrics.
    """

    engine_bytes: int
    kv_bytes: int

    def __sub__(self, before: Moved) -> Moved:
        return Moved(self.engine_bytes - before.engine_bytes, self.kv_bytes - before.kv_bytes)


@dataclass(frozen=True, slots=True)
class PairSetup:
    """What a pair is started with.

    decode_cache: whether the decode server keeps prefixes.
    decode_bindings: what the decode server's processes apply.
    flags: further flags of both. model, path: see `ServerSetup`.
    """

    model: Path
    path: Sequence[str | Path] = ()
    decode_cache: bool = True
    decode_bindings: Sequence[Any] = ()
    flags: Sequence[str] = ()


class SGLangPair:
    """A running pair; leaving the `with` ends both servers. folder: takes logs and the meter's."""

    def __init__(self, setup: PairSetup, folder: Path) -> None:
        self.folder = folder
        self.bootstrap_port = free_port()
        meter = folder / "meter"
        meter.mkdir(parents=True, exist_ok=True)
        self.meter = meter
        common = (*_FLAGS, "--disaggregation-bootstrap-port", str(self.bootstrap_port))
        cache = (DECODE_CACHE,) if setup.decode_cache else ()

        def server(role: str, flags: Sequence[str], bindings: Sequence[Any]) -> SGLangServer:
            made = ServerSetup(
                setup.model,
                setup.path,
                bindings=bindings,
                flags=("--disaggregation-mode", role, *common, *flags, *setup.flags),
                environment=ENVIRONMENT,
                stand_ins=STAND_INS,
                meter=str(meter) if role == "prefill" else "",
            )
            return SGLangServer(made, folder / f"{role}.log")

        self.prefill = server("prefill", (), ())
        self.decode = server("decode", cache, setup.decode_bindings)

    def __enter__(self) -> SGLangPair:
        try:
            for server in (self.prefill, self.decode):
                server.start()
            for server in (self.prefill, self.decode):
                server.wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End all processes of both servers."""
        for server in (self.prefill, self.decode):
            server.stop()

    def generate(
        self, tokens: Sequence[int], num_new_tokens: int = 4, **fields: Any
    ) -> tuple[Any, Any]:
        """The responses of both servers to one request, prefill's first."""
        together = bootstrap_fields(self.prefill.url, self.bootstrap_port)
        with ThreadPoolExecutor(2) as pool:
            halves = [
                pool.submit(server.generate, tokens, num_new_tokens, **together, **fields)
                for server in (self.prefill, self.decode)
            ]
            first, second = (half.result() for half in halves)
        return first, second

    def moved(self) -> Moved:
        """What crossed so far."""
        lines = [
            json.loads(line)
            for file in self.meter.glob("*.jsonl")
            for line in file.read_text(encoding="utf-8").splitlines()
        ]
        counted = sum(float(number) for number in _COUNTED.findall(self.prefill.get("/metrics")))
        engine = sum(line["bytes"] for line in lines if line["kind"] == "transfer")
        return Moved(engine, round(counted * (1 << 20)))


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation through a pair.

    prompt: the request's tokens; start: the first row of routes that was asked for.
    prefill, decode: the two responses. moved: what crossed for it.
    """

    prompt: tuple[int, ...]
    start: int
    prefill: Any
    decode: Any
    moved: Moved

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and response."""
        return (*self.prompt, *self.decode["output_ids"])


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns that each add `num_added` tokens of a tool to what was said before.

    salt: keeps its KV apart. delta: whether a turn asks only for the routes that are not held.
    """

    first_prompt: Sequence[int]
    num_new_tokens: int = 6
    num_added: int = 10
    salt: str = "conversation"
    delta: bool = True
    fields: dict[str, Any] = field(default_factory=dict)

    def turns(self, pair: SGLangPair, count: int) -> Iterator[Turn]:
        """The first `count` turns, one after the other."""
        prompt, held = tuple(self.first_prompt), 0
        for number in range(count):
            start = held if self.delta else 0
            before = pair.moved()
            halves = pair.generate(
                prompt,
                self.num_new_tokens,
                extra_key=self.salt,
                routed_experts_start_len=start,
                **self.fields,
            )
            turn = Turn(prompt, start, *halves, pair.moved() - before)
            yield turn
            held = len(turn.tokens) - 1
            prompt = (*turn.tokens, *(100 + (number + i) % 50 for i in range(self.num_added)))
