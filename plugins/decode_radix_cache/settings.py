"""What a user can set for decode-radix-cache."""

from __future__ import annotations

from miles_periodic.hooks.feature import FeatureSettings

SLUG = "decode-radix-cache"


class DecodeRadixCacheSettings(FeatureSettings):
    """Table `[decode-radix-cache]`."""

    prove_reuse: bool = True
    """Send two small requests through every decode server that came up, and end the run where the
    second one does not reuse what the first one generated."""

    refuse_unpaired: bool | None = None
    """Let a decode server answer 400 to a request that names no prefill server, which would end
    its scheduler otherwise. Left out: where the tree's shapes are known, and the plan names a
    tree where they are not; true: required; false: off."""
