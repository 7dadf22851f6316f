"""What the real servers must show before a run relies on them, and the requests that ask for it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Every request of a proof has a KV salt that starts with this, so that no rollout shares its KV.
PROOF_SALT = "miles-periodic:proof"


@dataclass(frozen=True, slots=True)
class ServerProof:
    """A few small requests that show what the real router and server do with a field.

    name: what is proved, for messages.
    requests: `/generate` bodies, sent one after the other through the run's own router.
    check: gets their responses in order; raises PeriodicError where the proof fails.
    """

    name: str
    requests: tuple[Mapping[str, Any], ...]
    check: Callable[[Sequence[Mapping[str, Any]]], None]


def proof_salt() -> str:
    """A KV salt that no other request has had."""
    return f"{PROOF_SALT}={uuid.uuid4().hex}"


def proof_request(tokens: Sequence[int], salt: str, num_new_tokens: int = 1) -> dict[str, Any]:
    """A `/generate` body for exactly `num_new_tokens` greedy tokens under a salt."""
    return {
        "input_ids": list(tokens),
        "sampling_params": {
            "max_new_tokens": num_new_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
        },
        "extra_key": salt,
    }
