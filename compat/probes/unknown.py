"""The answer for a tree in which something is not where, or not what, a probe knows."""

from __future__ import annotations

from miles_periodic.compat.probes.sightings import absent
from miles_periodic.hooks.decisions import Evidence, Unsupported


def unknown(
    slug: str,
    reason: str,
    *,
    use: str,
    target: str,
    expected: str,
    found: str,
    evidence: tuple[Evidence, ...] = (),
) -> Unsupported:
    """Unsupported, with one remedy for all of these.

    use: the trees that are known, as a user names them. evidence: what was seen there; without any,
    that `target` is absent.
    """
    return Unsupported(
        reason,
        f"Use {use}, or take the feature out with -{slug}.",
        evidence or (absent(target),),
        target=target,
        expected=expected,
        found=found,
    )
