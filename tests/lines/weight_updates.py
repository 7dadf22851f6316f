"""A real server whose weights change, and rollouts on it that are salted and counted by us."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from begun_request import Begun

from miles_periodic.compat.bindings import weight_update
from miles_periodic.compat.cpu import tiny_model
from miles_periodic.compat.cpu.sglang_server import ServerSetup, SGLangServer
from miles_periodic.hooks import RolloutState
from miles_periodic.hooks.values import RolloutStep
from miles_periodic.plugins.kv_preservation.feature import METRICS, KVPreservation
from miles_periodic.plugins.kv_preservation.settings import KVPreservationSettings

PROMPT_TOKENS = 256
FLAGS = ("--max-total-tokens", "16384", "--enable-cache-report")


def prompt(first: int) -> list[int]:
    """Tokens that no other test's prompt begins with."""
    return [first, *(30 + (first * 7 + i * 13) % 400 for i in range(PROMPT_TOKENS - 1))]


@contextmanager
def serving(path: Sequence[Path], folder: Path, flags: Sequence[str] = ()) -> Iterator[Weights]:
    """A server of the tree on `path`, with its first update done."""
    models = (folder / "even", folder / "odd")
    for seed, model in enumerate(models):
        tiny_model.write(model, seed=seed)
    setup = ServerSetup(models[0], path, flags=(*FLAGS, *flags))
    with SGLangServer(setup, folder / "server.log") as server:
        weights = Weights(server, models)
        weights.update_in_place()
        yield weights


@dataclass
class Weights:
    """The weights of a server: two checkpoints that take turns, and the count of updates."""

    server: SGLangServer
    models: tuple[Path, Path]
    version: int = 0

    def update_in_place(self, while_paused: Callable[[], None] = lambda: None, **more: Any) -> None:
        """Pause, load and go on, as Miles's updaters do it, through our bindings."""
        self.pause()
        while_paused()
        request = ("update_weights_from_disk", {**self._next(), **more})
        weight_update.ask_without_flush(self._make_request, self._engine(), request, {})
        self.server.post("/continue_generation")

    def pause(self) -> None:
        """Pause in place, until every scheduler has answered."""
        weight_update.pause_until_quiet(self._pause, self._engine(), (), {"mode": "in_place"})

    def update_with_flush(self, mode: str = "retract") -> None:
        """What Miles does where nothing is preserved."""
        self.server.post("/pause_generation", mode=mode)
        self.server.get("/flush_cache")
        self.server.post("/update_weights_from_disk", **self._next())
        self.server.post("/continue_generation")

    def _next(self) -> dict[str, str]:
        self.version += 1
        model = self.models[self.version % 2]
        return {"model_path": str(model), "weight_version": str(self.version)}

    def _engine(self) -> Any:
        host, _, port = self.server.url.removeprefix("http://").rpartition(":")
        arguments = SimpleNamespace(pause_generation_mode="in_place")
        return SimpleNamespace(args=arguments, server_host=host, server_port=port, node_rank=0)

    def _pause(self, mode: str) -> Any:
        return self.server.post("/pause_generation", mode=mode)

    def _make_request(self, endpoint: str, payload: dict[str, Any] | None = None) -> Any:
        return self.server.post(f"/{endpoint}", **(payload or {}))


class Rollouts:
    """Rollouts under one instance of the feature, as the bindings would run them."""

    def __init__(self, weights: Weights, **settings: Any) -> None:
        self.weights = weights
        self.feature = KVPreservation(KVPreservationSettings(**settings))

    def start(self, tokens: list[int]) -> Rollout:
        """A new rollout, which asks for the weight version first."""
        version = self.weights.server.get("/model_info")["weight_version"]
        return Rollout(self, RolloutState(str(version), has_started=True), list(tokens))

    def drain(self) -> dict[str, int]:
        """The feature's own counts since the last call, by their short names."""
        metrics = self.feature.rollout_step_metrics(step=RolloutStep((), None))
        return {name.removeprefix(METRICS): value for name, value in metrics.items()}


@dataclass
class Rollout:
    """One rollout of many turns."""

    rollouts: Rollouts
    state: RolloutState
    tokens: list[int]
    answers: list[dict[str, Any]] = field(default_factory=list)

    def turn(
        self, num_new_tokens: int = 8, begun: Begun | None = None, **fields: Any
    ) -> dict[str, Any]:
        """One request and the tool's answer to it. begun: is told what the request generates."""
        feature, request = self.rollouts.feature, {"return_logprob": True, **fields}
        asked = {"rollout": self.state, "tokens": self.tokens, "request": request}
        own = feature.generate_request_fields(**asked) or {}
        server = self.rollouts.weights.server
        generate = partial(begun.generate, server) if begun else server.generate
        answer = generate(self.tokens, num_new_tokens, **request, **own)
        feature.rollout_response(**asked, response=answer)
        self.answers.append(answer)
        new = [entry[1] for entry in answer["meta_info"]["output_token_logprobs"]]
        self.tokens = [*self.tokens, *new, 7, 8, 9]
        return answer

    def verdict(self) -> Any:
        """What the feature says of the rollout, under the newest weights."""
        newest = str(self.rollouts.weights.version)
        return self.rollouts.feature.rollout_verdict(
            rollout=self.state, weight_version=newest, finished=False
        )

    def in_flight(self, pool: ThreadPoolExecutor, num_new_tokens: int) -> Future:
        """A turn that runs meanwhile, and has generated something."""
        (turn,) = in_flight([self], pool, num_new_tokens)
        return turn


def in_flight(
    rollouts: Sequence[Rollout], pool: ThreadPoolExecutor, num_new_tokens: int
) -> list[Future]:
    """A turn of each that runs meanwhile, once every one of them has generated something."""
    begun = [Begun() for _ in rollouts]
    turns = [
        pool.submit(rollout.turn, num_new_tokens, each)
        for rollout, each in zip(rollouts, begun, strict=True)
    ]
    for each in begun:
        each.wait()
    return turns
