"""Whether the targets of an injection look as the adapters were written for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from miles_periodic.compat import fingerprints
from miles_periodic.compat.catalog import BINDINGS
from miles_periodic.compat.fingerprints import Fingerprint, KnownShape
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.decisions import Decision, Inject, Unsupported


def with_known_shapes(decision: Inject, slug: str, tree: Tree, accept_drift: bool) -> Decision:
    """`decision` where each target of its bindings has a known shape, or what stands against it.

    accept_drift: take unknown shapes, and record them in the reason.
    """
    targets = sorted({t for name in decision.bindings for t in BINDINGS[name].targets})
    drifted = []
    for target in targets:
        shape = fingerprints.of_target(tree, target)
        if shape is None:
            return _missing(decision, target)
        known = fingerprints.known_shapes().get(target, ())
        if shape not in [k.fingerprint for k in known]:
            if not accept_drift:
                return _unknown(decision, slug, target, shape, known)
            drifted.append(f"{target} {shape.signature} {shape.content[:12]}")
    if drifted:
        reason = f"{decision.reason}; drift accepted on request: {'; '.join(drifted)}"
        return replace(decision, reason=reason)
    return decision


def without_known_shape(names: Iterable[str], tree: Tree) -> tuple[str, ...]:
    """The targets of those bindings that a tree has not, or has in an unknown shape."""
    targets = sorted({t for name in names for t in BINDINGS[name].targets})
    known = fingerprints.known_shapes()
    return tuple(
        target
        for target in targets
        if fingerprints.of_target(tree, target)
        not in [k.fingerprint for k in known.get(target, ())]
    )


def _missing(decision: Inject, target: str) -> Unsupported:
    labels = ", ".join(k.label for k in fingerprints.known_shapes().get(target, ()))
    return Unsupported(
        f"{decision.reason}; but the target {target} is not there",
        f"Use a tree that has it: {labels}." if labels else "Use a tree that has it.",
        decision.evidence,
        target,
        expected=f"a definition, as in {labels}" if labels else "a definition",
        found="no such definition",
    )


def _unknown(
    decision: Inject,
    slug: str,
    target: str,
    shape: Fingerprint,
    known: Sequence[KnownShape],
) -> Unsupported:
    """An unknown shape; --accept-drift is only recommended where the signature is a known one."""
    nearest = [k for k in known if k.fingerprint.signature == shape.signature]
    shown = [
        f"{k.fingerprint.signature} {k.fingerprint.content} ({k.label})" for k in nearest or known
    ]
    labels = ", ".join(k.label for k in known) or "none recorded"
    drift = "a known signature with an unknown body" if nearest else "an unknown signature"
    remedy = f"Use a tree whose shape is known ({labels})"
    if nearest:
        remedy += f", or read the change and give --accept-drift {slug}"
    return Unsupported(
        f"{decision.reason}; but {target} has {drift}",
        f"{remedy}.",
        decision.evidence,
        target,
        expected="; ".join(shown) or "a recorded shape",
        found=f"{shape.signature} {shape.content}",
    )
