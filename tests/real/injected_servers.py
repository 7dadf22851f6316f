"""A server that a Ray worker starts, and what it does to a few requests with our bindings in."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from becoming import becomes
from begun_request import Begun
from ray_engine import SGLangEngine
from route_turns import Answer, ask, drawn, read

from miles_periodic.compat.cpu.sglang_server import ServerRefusal, SGLangServer

#: New tokens of the request that is retracted.
NUM_NEW = 150
#: Requests of which one is still running when the pause arrives, however busy the machine is.
MAX_TRIES = 20
PATIENCE_SECONDS = 300


class ServerOfAnEngine(SGLangServer):
    """A server that is a Ray worker's child; the boot line reaches both through Ray.

    Ray has to be up.
    """

    def start(self) -> None:
        import ray

        self.roll_call.__enter__()
        remote = ray.remote(num_cpus=0, runtime_env={"env_vars": self.environment()})(SGLangEngine)
        self._engine = remote.remote(self.command(), str(self.log))

    @property
    def is_running(self) -> bool:
        import ray

        return ray.get(self._engine.is_running.remote(), timeout=PATIENCE_SECONDS)

    def stop(self) -> None:
        import ray

        ray.get(self._engine.stop.remote(), timeout=PATIENCE_SECONDS)
        ray.kill(self._engine)
        self.roll_call.__exit__()


@dataclass(frozen=True)
class Observed:
    """What came of one server.

    full, delta: of one request, all rows and those from DELTA_START on. behind: of four new
    tokens, the rows behind the prompt. silent, beside: routes of requests that asked for none, and
    of those that ran beside them. alone, retracted: one request left alone, and the same again,
    retracted for new weights in the middle. where: binding to the roles that called it; roles: of
    all processes; in_sources: the bindings that a patched module put in. failures: as told.
    """

    full: Answer
    delta: Answer
    behind: Answer
    silent: list[Any]
    beside: list[Answer]
    alone: Answer
    retracted: Answer
    where: dict[str, set[str]]
    roles: set[str]
    in_sources: set[str]
    failures: list[str]


DELTA_START = 30
LONG, SHORT = drawn(1, 50), drawn(2, 12)


def observe(server: SGLangServer, models: tuple[Path, Path]) -> Observed:
    """Ask a server that serves the first of two models; it is left with the second one."""
    silent, beside = _mixed(server)
    full, delta = _afresh(server, LONG, 5), _afresh(server, LONG, 5, DELTA_START)
    behind = _afresh(server, SHORT, 4, len(SHORT))
    alone, retracted = _retracted(server, models)
    roll = server.roll
    # What does not come is for the tests to tell.
    wanted = {binding.name for binding in roll.bindings}
    becomes(lambda: _where(roll).keys() == wanted and "engine" in _roles(roll))
    in_sources = {name for row in roll.rows() for name in row["in_sources"]}
    failures = [str(failure) for failure in roll.failures]
    return Observed(
        full, delta, behind, silent, beside, alone, retracted, _where(roll), _roles(roll),
        in_sources, failures,
    )  # fmt: skip


def _where(roll) -> dict[str, set[str]]:
    where: dict[str, set[str]] = {}
    for row in roll.rows():
        for name in row["consulted"]:
            where.setdefault(name, set()).add(row["role"])
    return where


def _roles(roll) -> set[str]:
    return {row["role"] for row in roll.rows()}


def _afresh(server: SGLangServer, *request: Any, **fields: Any) -> Answer:
    """A request of which nothing is cached: a prefill of its end alone would round otherwise."""
    _flush(server)
    return ask(server, *request, **fields)


def _flush(server: SGLangServer) -> None:
    """Empty the cache; refused while the last forward of a request that was answered runs."""

    def is_done() -> bool:
        try:
            server.post("/flush_cache")
        except ServerRefusal:
            return False
        return True

    assert becomes(is_done)


def _mixed(server: SGLangServer) -> tuple[list[Any], list[Answer]]:
    """Three requests at once beside three that ask for no routes."""
    with ThreadPoolExecutor(6) as pool:
        silent = [
            pool.submit(server.generate, drawn(60 + number, 9), 9, return_routed_experts=False)
            for number in range(3)
        ]
        beside = [pool.submit(ask, server, drawn(30 + number, 20), 9, 5) for number in range(3)]
        answers = [future.result() for future in beside]
        return [future.result()["meta_info"].get("routed_experts") for future in silent], answers


def _retracted(server: SGLangServer, models: tuple[Path, Path]) -> tuple[Answer, Answer]:
    before, after = models
    alone = _afresh(server, LONG, NUM_NEW, return_logprob=True)
    for _ in range(MAX_TRIES):
        answer = _under_new_weights(server, after)
        if answer.logprobs != alone.logprobs:
            return alone, answer
        _load(server, before)
    raise AssertionError(f"{MAX_TRIES} requests were over before a pause arrived")


def _under_new_weights(server: SGLangServer, model: Path) -> Answer:
    """A request that is retracted once it has begun, and goes on under another model."""
    _flush(server)
    begun, fields = Begun(), {"routed_experts_start_len": 0, "return_logprob": True}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(begun.generate, server, LONG, NUM_NEW, **fields)
        begun.wait()
        _load(server, model)
        return read(answer.result())


def _load(server: SGLangServer, model: Path) -> None:
    server.post("/pause_generation", mode="retract")
    done = server.post("/update_weights_from_disk", model_path=str(model), flush_cache=False)
    server.post("/continue_generation")
    assert done["success"], done
