"""What a user can set for delta-router-replay."""

from __future__ import annotations

from pydantic import Field

from miles_periodic.hooks.feature import FeatureSettings


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
