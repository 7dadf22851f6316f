"""What a user can set for request-routing."""

from __future__ import annotations

from pydantic import Field

from miles_periodic.hooks.feature import FeatureSettings

SLUG = "request-routing"


class RequestRoutingSettings(FeatureSettings):
    """Table `[request-routing]`."""

    sticky_keys: bool = True
    """Send one routing key with every request of a rollout or session, where Miles sends none."""

    sticky_ranks: bool = True
    """Choose one data-parallel rank for all turns of a rollout, where no router chooses it."""

    score_servers: bool = True
    """Let Miles's Python router take the server with the highest score instead of the one with the
    fewest open requests."""

    router_policy: str = ""
    """A policy to set for the Rust router where the command line names none, such as `manual`;
    empty leaves Miles's choice, under which the router may not look at the key."""

    prefix_weight: float = Field(1.0, ge=0, allow_inf_nan=False)
    """Score of one token that the server is expected to hold in its KV cache."""

    queue_weight: float = Field(512.0, ge=0, allow_inf_nan=False)
    """Score taken off per request that waits in the server, in prefix tokens."""

    kv_weight: float = Field(4096.0, ge=0, allow_inf_nan=False)
    """Score taken off for a KV cache that is full, in prefix tokens; half of it at half use."""

    load_weight: float = Field(64.0, ge=0, allow_inf_nan=False)
    """Score taken off per request that the server still owes this router, in prefix tokens."""

    block_tokens: int = Field(64, ge=1)
    """Tokens per block of the prefix index: what is expected of a server is a multiple of it."""

    index_tokens: int = Field(1 << 20, ge=1)
    """Most tokens that the prefix index remembers per server; memory is bounded by 256 bytes per
    block, 4 MiB per server at the default."""

    max_rollouts: int = Field(1 << 16, ge=1)
    """Most rollouts whose last turn is remembered; about 512 bytes each."""
