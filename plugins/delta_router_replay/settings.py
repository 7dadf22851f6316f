"""What a user can set for delta-router-replay."""

from __future__ import annotations

from pydantic import Field

from miles_periodic.hooks.feature import FeatureSettings

SLUG = "delta-router-replay"


class DeltaRouterReplaySettings(FeatureSettings):
    """Table `[delta-router-replay]`."""

    prove_round_trip: bool = True
    """Send one small request through the run's own router before the first rollout, and end the
    run where its routes do not come back or a delta is answered with full rows."""

    max_constant_run: int | None = Field(default=4096, ge=1)
    """Refuse a payload with more equal rows in a row than this: padding or a stale buffer, not
    routing. Off where it is left out of reach; a repetition of one token can be long."""

    join_halves: bool = True
    """Under prefill/decode disaggregation, send a request for routes to both servers of a pair,
    past the router, and join prefill's rows with decode's. Off, such a run is refused."""

    compact_wire: bool = False
    """Let the servers send routes as uint8 (up to 256 experts) or uint16 with a header of 16
    bytes, instead of int32: a quarter or half of the bytes. Only clients of this package read
    it."""

    keep_rows_on_retraction: bool | None = None
    """Let the servers keep the rows that a retracted request was sampled with, and return them
    instead of those of its second prefill. Left out: where the tree's shapes are known, and the
    plan names a tree where they are not; true: required; false: off. Until such a request
    finishes, its new rows stay in host memory, in two bytes per expert id."""

    check_capture_buffer: bool | None = None
    """Let a server refuse to start where a forward can hold more tokens than its buffer for
    captured routes, which would end it later, or where a draft model writes into that buffer.
    Left out, true and false as above."""

    max_rank_bytes: int | None = Field(default=None, ge=1)
    """Refuse a step for which one train rank would hold more bytes of routes than this in its
    host memory, before they are made. Left out: whatever the step needs."""
