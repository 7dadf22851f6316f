"""Everything that is done with one running pair, written down: one boot serves all tests."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from becoming import becomes
from pair_router import Router

from miles_periodic.compat.bindings import rollout_pairs
from miles_periodic.compat.bindings.running_server import RunningServer, bootstrap_fields
from miles_periodic.compat.catalog import BINDINGS
from miles_periodic.compat.cpu import tiny_model
from miles_periodic.compat.cpu.sglang_pair import Conversation, PairSetup, SGLangPair, Turn
from miles_periodic.compat.cpu.sglang_server import ServerRefusal, SGLangServer
from miles_periodic.hooks import PeriodicError
from miles_periodic.hooks.manager import build_manager
from miles_periodic.hooks.values import ServerGroup
from miles_periodic.plugins.decode_radix_cache.proof import check_reuse
from miles_periodic.plugins.delta_router_replay.feature import DeltaRouterReplay

NUM_TURNS = 6
GUARD = BINDINGS["server/refuse-unpaired"]
#: Tokens of the request that runs while the weights change.
NUM_RUNNING = 200


@dataclass(frozen=True)
class Reuse:
    """A request whose first `prefix` tokens were sent before, warm, and cold under another salt."""

    prefix: int
    cached: int
    num_prompt: int
    warm: list[int]
    cold: list[int]


@dataclass
class Update:
    """What an update in place did to the pair.

    generated_while_paused: tokens that the running request had, looked at several times.
    num_generated: tokens that it had at its end. cached_of_new: tokens that a request under a
    new salt reused after the update.
    """

    answers: list[Any] = field(default_factory=list)
    generated_while_paused: list[int] = field(default_factory=list)
    num_generated: int = 0
    cached_of_new: int = -1


@dataclass
class Routed:
    """What goes through a real router in front of the pair.

    plain: the response to a request for routes that the router itself handed on. joined: the same
    request, sent to both servers. alone: both halves of it, asked for directly. proof: what the
    proof of the decode server's cache found, or empty.
    """

    tokens: list[int]
    plain: Any
    joined: Any
    alone: tuple[Any, Any]
    proof: str


@dataclass
class Observed:
    """All that was seen of one pair."""

    delta: list[Turn]
    full: list[Turn]
    reuses: list[Reuse]
    report: dict[str, Any]
    refusals: list[int]
    still_answers: bool
    update: Update | None
    never_consulted: list[str]
    routed: Routed


def observe(
    folder: Path,
    path: list[Path],
    *,
    decode_cache: bool,
    update: bool = False,
    num_turns: int = NUM_TURNS,
    prefixes: Sequence[int] = (),
    flags: Sequence[str] = (),
) -> Observed:
    """Start a pair, do everything with it, and end it.

    update: change the weights under a running request. prefixes: lengths that are reused.
    """
    for name, seed in (("model", 0), ("other", 7)):
        tiny_model.write(folder / name, seed=seed)
    setup = PairSetup(folder / "model", path, decode_cache, (GUARD,), flags)
    with SGLangPair(setup, folder / "pair") as pair:
        prompt = drawn(1, 40)
        return Observed(
            delta=list(Conversation(prompt, salt="delta").turns(pair, num_turns)),
            full=list(Conversation(prompt, salt="full", delta=False).turns(pair, num_turns)),
            reuses=[_reuse(pair, prefix) for prefix in prefixes],
            report=pair.decode.get("/server_info"),
            refusals=[_status(pair, {}), _status(pair, {"bootstrap_room": 7})],
            still_answers=len(pair.generate(drawn(2, 20))[1]["output_ids"]) == 4,
            update=_update(pair, folder / "other") if update else None,
            routed=_routed(pair, folder / "router.log"),
            never_consulted=pair.decode.roll.never_consulted(),
        )


def drawn(seed: int, count: int) -> list[int]:
    """Tokens that no other seed shares a prefix with."""
    return np.random.default_rng(seed).integers(10, 500, count).tolist()


def _reuse(pair: SGLangPair, prefix: int) -> Reuse:
    before = drawn(100 + prefix, 48)
    tokens = [*before[:prefix], *drawn(200 + prefix, 9)]
    pair.generate(before, extra_key=f"warm-{prefix}")
    warm = pair.generate(tokens, 8, extra_key=f"warm-{prefix}")[1]
    cold = pair.generate(tokens, 8, extra_key=f"cold-{prefix}")[1]
    cached = warm["meta_info"]["cached_tokens"]
    return Reuse(prefix, cached, len(tokens), warm["output_ids"], cold["output_ids"])


def _status(pair: SGLangPair, fields: dict[str, Any]) -> int:
    """The status with which the decode server answers a request that names no prefill server."""
    try:
        pair.decode.generate(drawn(3, 20), timeout=60, **fields)
    except ServerRefusal as refusal:
        return refusal.status
    return 200


def _routed(pair: SGLangPair, log: Path) -> Routed:
    tokens = drawn(6, 30)
    sampling = {"max_new_tokens": 4, "temperature": 0.0, "ignore_eos": True}
    request = {"input_ids": tokens, "sampling_params": sampling, "return_routed_experts": True}
    alone = pair.generate(tokens, 4, extra_key="alone")
    with Router(pair, log) as router:
        plain = router.ask("/generate", request)
        joined = asyncio.run(_sent_to_both(router.url, {**request, "extra_key": "joined"}))
        server = RunningServer(pair.decode.url, router.url, ServerGroup("decode", {}))
        try:
            check_reuse(server.report(), server.generate)
            return Routed(tokens, plain, joined, alone, "")
        except PeriodicError as error:
            return Routed(tokens, plain, joined, alone, str(error))


async def _sent_to_both(router: str, request: dict[str, Any]) -> Any:
    """The response to a rollout's request under the binding, or the error that ends it."""
    manager = build_manager([DeltaRouterReplay()])
    held, rollout_pairs.manager = rollout_pairs.manager, lambda: manager

    async def post(url, payload, max_retries=60, action="post", headers=None):
        async with httpx.AsyncClient(timeout=240) as client:
            return (await client.post(url, json=payload)).raise_for_status().json()

    try:
        return await rollout_pairs.send_to_both(post, None, (f"{router}/generate", request), {})
    except PeriodicError as error:
        return str(error)
    finally:
        rollout_pairs.manager = held


def _update(pair: SGLangPair, model: Path) -> Update:
    seen = Update()
    tokens = drawn(4, 30)
    pair.generate(tokens, extra_key="version-1")
    running = Running(pair, drawn(5, 30))
    running.start()
    running.wait_for_tokens(3)
    for server in (pair.prefill, pair.decode):
        server.post("/pause_generation", mode="in_place")
    running.wait_until_quiet()
    for _ in range(3):
        seen.generated_while_paused.append(running.num_tokens)
        time.sleep(0.5)
    for server in (pair.prefill, pair.decode):
        seen.answers.append(
            server.post(
                "/update_weights_from_disk",
                model_path=str(model),
                flush_cache=False,
                weight_version="2",
            )
        )
    for server in (pair.decode, pair.prefill):
        server.post("/continue_generation")
    running.join(300)
    seen.num_generated = running.num_tokens
    new = pair.generate(tokens, extra_key="version-2")[1]
    seen.cached_of_new = new["meta_info"]["cached_tokens"]
    return seen


class Running(threading.Thread):
    """A long request to a pair, whose tokens are counted as they arrive."""

    def __init__(self, pair: SGLangPair, tokens: list[int]) -> None:
        super().__init__(daemon=True)
        self.pair, self.tokens, self.num_tokens = pair, tokens, 0

    def run(self) -> None:
        sampling = {"max_new_tokens": NUM_RUNNING, "temperature": 0.0, "ignore_eos": True}
        body = {
            "input_ids": self.tokens,
            "sampling_params": sampling,
            "extra_key": "version-1",
            "stream": True,
            **bootstrap_fields(self.pair.prefill.url, self.pair.bootstrap_port),
        }
        first = threading.Thread(target=self._read, args=(self.pair.prefill, body, False))
        first.start()
        self._read(self.pair.decode, body, True)
        first.join()

    def _read(self, server: SGLangServer, body: dict[str, Any], counts: bool) -> None:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(
            f"{server.url}/generate", json.dumps(body).encode(), headers
        )
        with urllib.request.urlopen(request, timeout=300) as lines:
            for line in lines:
                if counts and line.startswith(b"data: {"):
                    self.num_tokens = json.loads(line[6:])["meta_info"]["completion_tokens"]

    def wait_for_tokens(self, count: int) -> None:
        """Return when the request has so many of its tokens."""
        assert becomes(lambda: self.num_tokens >= count)

    def wait_until_quiet(self) -> None:
        """Return when what was on its way has arrived: nothing has come for two seconds."""

        def is_quiet() -> bool:
            before = self.num_tokens
            time.sleep(2)
            return self.num_tokens == before

        becomes(is_quiet)
