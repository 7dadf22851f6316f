"""What a decode server cannot have besides a radix cache, and the error that names it."""

from __future__ import annotations

from collections.abc import Iterator

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.values import Refusal, ServerGroup
from miles_periodic.plugins.decode_radix_cache.settings import SLUG

FLAG = "disaggregation_decode_enable_radix_cache"

#: What goes wrong beside the cache on every tree that has it, whether or not the tree refuses it.
ALWAYS_REFUSED = (
    Refusal("disable_radix_cache", refused=(True,)),
    Refusal("disaggregation_transfer_backend", refused=("fake",)),
    Refusal("enable_hisparse", refused=(True,)),
    # Both own a decode request's KV: slots are freed twice (sgl-project/sglang#27666).
    Refusal("disaggregation_decode_enable_offload_kvcache", refused=(True,)),
    Refusal("disaggregation_decode_retraction_backup", refused=("host_pool",)),
    Refusal("disaggregation_decode_allocation_policy", refused=("prefill_complete",)),
)

#: Names of speculative decoding that SGLang takes for another one before it looks.
_SAME_AS = {"NEXTN": "EAGLE"}


def first_conflict(servers: ServerGroup) -> PeriodicError | None:
    """The error that names the first argument of a group that the cache does not go with."""
    for refusal in (*servers.refusals_beside(FLAG), *ALWAYS_REFUSED):
        for value in _set_values(servers, refusal.argument):
            if refusal.refuses(value):
                return _error(refusal, value)
    return None


def _set_values(servers: ServerGroup, argument: str) -> Iterator[object]:
    if argument in servers.arguments:
        value = servers.arguments[argument]
        yield _SAME_AS.get(value, value) if isinstance(value, str) else value


def _error(refusal: Refusal, value: object) -> PeriodicError:
    option = refusal.argument.replace("_", "-")
    expected = (
        f"one of {', '.join(map(str, refusal.allowed))}"
        if refusal.allowed is not None
        else f"anything but {', '.join(map(str, refusal.refused))}"
    )
    source = f" ({refusal.where})" if refusal.where else ""
    return PeriodicError(
        f"A decode server cannot have a radix cache beside {refusal.argument}={value!r}.",
        feature=SLUG,
        target=f"decode servers, {refusal.argument}{source}",
        expected=expected,
        found=repr(value),
        remedy=f"Change --sglang-{option} (or its override for the decode group in "
        f"--sglang-config), or take the feature out with -{SLUG}.",
    )
