"""Routes of tokens: their shape, what a response brought, and a train rank's share of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: Fields of a `/generate` request that carry images, audio or video.
MEDIA_FIELDS = ("image_data", "audio_data", "video_data")


@dataclass(frozen=True, slots=True)
class RouteShape:
    """The shape of one token's routes: (num_layers, top_k) out of num_experts."""

    num_layers: int
    top_k: int
    num_experts: int


@dataclass(frozen=True, slots=True)
class RouteAnswer:
    """What the response to one request brought as routes.

    payload: as it came: base64 text, bytes, an array, or None where nothing came.
    start: the row of the trajectory that the request asked from.
    request_id, weight_version: as the server gave them.
    is_aborted: whether the request was cut off; rows may then be missing at its end.
    only_server_counts: whether a text, images or audio went along, so that only the server knows
        how many tokens, and so rows, there were.
    """

    payload: Any
    start: int = 0
    request_id: str = ""
    weight_version: str | None = None
    is_aborted: bool = False
    only_server_counts: bool = False


@dataclass(frozen=True, slots=True)
class RankShare:
    """What one train rank computes of one micro-batch.

    rank: global rank, for messages. micro_batch: its number in the step.
    layers: the model's layer (from 0) of each of the rank's routers, in their order.
    rows: int64 (positions,): for each position of the rank's slice the row that it replays,
        counted over the rows of all samples one after the other; -1 where it is padding.
    """

    rank: int
    micro_batch: int
    layers: Sequence[int]
    rows: Any
