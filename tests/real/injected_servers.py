"""What one server with our bindings in does to a few requests, seen from a Ray worker.

An engine of Miles is a Ray actor that starts a server, which spawns its scheduler: here, too.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from route_turns import ask, drawn

from miles_periodic.compat.cpu.sglang_server import ServerSetup, SGLangServer

#: Room for two long requests, and a scheduler that every 20 forwards retracts one.
FLAGS = (
    "--chunked-prefill-size", "32", "--max-total-tokens", "640", "--schedule-conservativeness",
    "0.1",
)  # fmt: skip
RETRACTING = {"SGLANG_TEST_RETRACT": "true", "SGLANG_TEST_RETRACT_INTERVAL": "20"}
#: Counts reach the roll call once a second.
COUNTED_SECONDS = 2.5
NUM_PROMPT, NUM_NEW, START = 60, 120, 20
#: Hot, for a greedy answer repeats itself, and so do its rows.
SAMPLING = {"temperature": 1.5}


@dataclass
class Observed:
    """Plain values of one server.

    full_rows, delta_rows: rows of one request, whole and from row 30 on, as bytes.
    num_rows_behind_the_prompt: of four new tokens, asked for from the prompt's end on.
    retracted: rows, as lists, of sampled tokens of prompts that ran at once.
    prefilled: rows of one prefill of each prompt with those tokens, which an idle server makes.
    num_retractions: of those that ran at once. silent: what came for requests without routes.
    roll: the rows of the roll call; failures: its failures.
    """

    full_rows: bytes = b""
    delta_rows: bytes = b""
    row_bytes: int = 0
    num_rows_behind_the_prompt: int = 0
    prefilled: list = field(default_factory=list)
    retracted: list = field(default_factory=list)
    num_retractions: int = 0
    silent: list = field(default_factory=list)
    roll: list = field(default_factory=list)
    failures: list = field(default_factory=list)
    never_consulted: list = field(default_factory=list)


def observe(setup: ServerSetup, log: Path) -> Observed:
    """Start the server, ask it, and end it."""
    seen = Observed()
    with SGLangServer(setup, log) as server:
        prompt = drawn(1, 40)
        full, delta = ask(server, prompt, 5), ask(server, prompt, 5, 30)
        seen.full_rows, seen.delta_rows = full.rows.tobytes(), delta.rows.tobytes()
        seen.row_bytes = full.rows[0].nbytes
        seen.num_rows_behind_the_prompt = len(ask(server, prompt, 4, len(prompt)).rows)
        _retract(server, seen)
        time.sleep(COUNTED_SECONDS)
        seen.roll = server.roll.rows()
        seen.failures = [str(failure) for failure in server.roll.failures]
        seen.never_consulted = server.roll.never_consulted()
    return seen


def _retract(server: SGLangServer, seen: Observed) -> None:
    """Three requests at once beside three that ask for no routes, then their tokens again."""
    prompts = [drawn(30 + number, NUM_PROMPT) for number in range(3)]
    with ThreadPoolExecutor(6) as pool:
        silent = [
            pool.submit(server.generate, drawn(60 + number, 9), 4, return_routed_experts=False)
            for number in range(3)
        ]
        asked = [
            pool.submit(ask, server, prompt, NUM_NEW, START, sampling_params=SAMPLING)
            for prompt in prompts
        ]
        answers = [future.result() for future in asked]
        seen.silent = [future.result()["meta_info"].get("routed_experts") for future in silent]
    for prompt, answer in zip(prompts, answers, strict=True):
        whole = ask(server, [*prompt, *answer.tokens], 1, START, extra_key="prefilled")
        seen.prefilled.append(whole.rows.tolist())
        seen.retracted.append(answer.rows.tolist())
    seen.num_retractions = sum(answer.meta.get("num_retractions", 0) for answer in answers)
