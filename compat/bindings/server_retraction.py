"""The rows that a retracted request was sampled with, kept until it finishes.

A retracted request gives its KV slots back and prefills its own output again. The host buffer of
captured routes is indexed by slot, so that it then holds the routes of the second pass, beside the
log-probabilities of the first. What is kept hangs on the request object and goes with it: finished,
aborted or dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from miles_periodic.compat.bindings.server_routes import FIELD, gathered

_KEPT = "miles_periodic_rows_before_retraction"


@dataclass(frozen=True, slots=True)
class _Kept:
    """Rows [first, first + len(rows)) of a request; two bytes per expert id where they suffice."""

    first: int
    rows: np.ndarray

    @property
    def end(self) -> int:
        return self.first + len(self.rows)


def keep(wrapped, instance, args, kwargs):
    """Symptom: after a retraction, rows of generated tokens differ from those that sampled them.

    Trigger: a request is retracted: the KV pool is full, a higher priority wants its place, or
    generation is paused in mode retract. Takes down: nothing. Safe because rows are only read,
    before the slots are given back; the rows of every token that the request was told of are in
    the host buffer by then: a step's rows are finalised before its tokens are appended, and
    those of a step in flight belong to a token that is thrown away with it. Upstream:
    sgl-project/sglang#24001, open.
    """
    _keep_rows(kwargs["req"], kwargs["req_to_token_pool"])
    return wrapped(*args, **kwargs)


def keep_of_batch(wrapped, instance, args, kwargs):
    """Symptom: as in `keep`, in trees where the batch retracts by position.

    Trigger: as in `keep`. Takes down: nothing. Safe because the request at that position is the
    one that is given back, and rows are only read. Upstream: sgl-project/sglang#24001, open.
    """
    position = args[0] if args else kwargs["idx"]
    _keep_rows(instance.reqs[position], instance.req_to_token_pool)
    return wrapped(*args, **kwargs)


def give_back(wrapped, instance, args, kwargs):
    """Symptom: a finished request's rows are gathered from the slots of its last prefill.

    Trigger: a request that was retracted finished. Takes down: nothing. Safe because only rows
    that were kept are replaced, each by the row of the same token; a request that was never
    retracted is left alone. Upstream: sgl-project/sglang#24001, open.
    """
    outcome = wrapped(*args, **kwargs)
    request = args[0] if args else kwargs["req"]
    kept: _Kept | None = getattr(request, _KEPT, None)
    if kept is not None and request.routed_experts is not None:
        _replace(request.routed_experts.numpy(), getattr(request, FIELD, 0), kept)
    return outcome


def _keep_rows(request: Any, pool: Any) -> None:
    """Keep the rows that sampled the request's output so far, behind those kept before."""
    if not (request.return_routed_experts and request.output_ids):
        return
    if request.input_embeds is not None:
        # SGLang throws the output of such a request away and samples all of it again.
        return
    kept: _Kept | None = getattr(request, _KEPT, None)
    first = kept.end if kept else getattr(request, FIELD, 0)
    end = len(request.origin_input_ids) + len(request.output_ids) - 1
    if first >= end:
        return
    rows = _narrow(gathered(request, pool, first, end))
    if kept:
        rows = np.concatenate([kept.rows, rows])
    setattr(request, _KEPT, _Kept(kept.first if kept else first, rows))


def _narrow(rows: np.ndarray) -> np.ndarray:
    """As int16, which -1 survives too, unless there are ids beyond it."""
    fits = not rows.size or rows.max() <= np.iinfo(np.int16).max
    return rows.astype(np.int16) if fits else rows


def _replace(rows: np.ndarray, start: int, kept: _Kept) -> None:
    """Write the kept rows over those of the same tokens; `rows` begins at row `start`."""
    first, end = max(start, kept.first), min(start + len(rows), kept.end)
    if first < end:
        rows[first - start : end - start] = kept.rows[first - kept.first : end - kept.first]
