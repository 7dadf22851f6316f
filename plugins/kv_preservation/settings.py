"""What a user can set for kv-preservation."""

from __future__ import annotations

from pydantic import Field

from miles_periodic.hooks.feature import FeatureSettings

SLUG = "kv-preservation"


class KVPreservationSettings(FeatureSettings):
    """Table `[kv-preservation]`."""

    salt: bool = True
    """Give every rollout the salt of the weight version it starts under, so that new rollouts never
    reuse KV that older weights computed."""

    pause_in_place: bool = True
    """Set Miles's pause mode to in_place, so that running rollouts keep their KV over an update."""

    prove_salt: bool = True
    """Send two small requests with different salts before the first rollout, and end the run where
    the second one reuses the first one's KV."""

    max_off_policy_steps: int | None = Field(default=None, ge=0)
    """Cancel a rollout that started more than this many weight versions ago, in flight or finished,
    and train on nothing of its group. None, the default, lets every rollout go on."""
