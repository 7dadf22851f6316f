"""Turns of a conversation on a real server, and the rows that come back."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from miles_periodic.compat.catalog import bindings_named
from miles_periodic.compat.cpu import tiny_model
from miles_periodic.compat.cpu.sglang_server import STAND_INS, ServerSetup, SGLangServer
from miles_periodic.compat.manifest import FeatureReference
from miles_periodic.compat.plan import make_plan
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks import Inject, Native
from miles_periodic.plugins import features
from miles_periodic.plugins.delta_router_replay import RouteRows
from miles_periodic.plugins.delta_router_replay.payload import decode
from miles_periodic.plugins.delta_router_replay.settings import DeltaRouterReplaySettings

SLUG = "delta-router-replay"
MODEL = tiny_model.TinyModel()
SHAPE = (MODEL.num_hidden_layers, MODEL.num_experts_per_tok)


def replaying(
    model, path, flags=(), *, environment=None, stand_ins=STAND_INS, **settings
) -> ServerSetup:
    """A server with what the plan puts in for the feature on the tree that is last on `path`."""
    chosen = {SLUG: DeltaRouterReplaySettings(**settings)}
    tree = Tree.at("sglang", path[-1])
    plan = make_plan(features(), [SLUG], {"sglang": tree}, environment={}, settings=chosen)
    decision = next(row.decision for row in plan.rows_of(SLUG) if row.upstream == "sglang")
    assert isinstance(decision, Native | Inject), decision
    names = decision.bindings if isinstance(decision, Inject) else ()
    feature = next(f for f in features() if f.slug == SLUG)
    return ServerSetup(
        model,
        path,
        bindings_named(names),
        (FeatureReference.of(feature, chosen[SLUG]),),
        flags=tuple(flags),
        environment=environment or {},
        stand_ins=stand_ins,
    )


@dataclass(frozen=True)
class Answer:
    """One response: its new tokens, its rows from `start` on, and what came on the wire."""

    tokens: list[int]
    rows: np.ndarray
    text: str
    meta: dict[str, Any]

    @property
    def logprobs(self) -> list[float]:
        return [entry[0] for entry in self.meta["output_token_logprobs"]]


def ask(server: SGLangServer, tokens: Sequence[int], num_new: int = 4, start: int = 0, **fields):
    """Generate, and decode the rows that were asked for."""
    answer = server.generate(tokens, num_new, routed_experts_start_len=start, **fields)
    return read(answer, start)


def read(answer: dict[str, Any], start: int = 0) -> Answer:
    """What a `/generate` response carries."""
    text = answer["meta_info"]["routed_experts"]
    return Answer(
        answer["output_ids"], decode(text, *SHAPE, first_row=start), text, answer["meta_info"]
    )


def drawn(seed: int, count: int) -> list[int]:
    """Tokens that no other seed shares a prefix with."""
    return np.random.default_rng(seed).integers(10, 500, count).tolist()


@dataclass(frozen=True)
class Conversation:
    """What is left of a conversation: its tokens, the rows assembled from deltas, its payloads."""

    tokens: list[int]
    rows: RouteRows
    deltas: list[Answer]
    fulls: list[Answer]


def converse(server, tokens, num_turns=6, num_new=5, **fields) -> Conversation:
    """Turns that each ask for new rows only, and beside it once for all rows."""
    rows = RouteRows(*SHAPE, MODEL.num_experts)
    tokens, deltas, fulls = list(tokens), [], []
    for turn in range(num_turns):
        start = rows.next_start
        delta = ask(server, tokens, num_new, start, **fields)
        rows.append(start, delta.text, request_id=delta.meta["id"])
        fulls.append(ask(server, tokens, num_new, **fields))
        deltas.append(delta)
        tokens += [*delta.tokens, *drawn(1000 + turn, 7)]
    return Conversation(tokens, rows, deltas, fulls)


def same(rows: np.ndarray, others: np.ndarray) -> bool:
    """Whether two sets of rows are equal, byte for byte, as int32."""
    return rows.astype(np.int32).tobytes() == others.astype(np.int32).tobytes()


def is_compact(answer: Answer) -> bool:
    """Whether the rows came in a byte per expert id."""
    return base64.b64decode(answer.text)[:4] == b"MPR3"
