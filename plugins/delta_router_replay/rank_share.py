"""What one train rank keeps of the routes: its own layers, its own positions, compact.

Shape legend: L layers of the model, l layers of the rank, P positions of the rank's slice of a
micro-batch, K experts per token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from miles_periodic.hooks.values import RankShare, RouteShape
from miles_periodic.plugins.delta_router_replay.payload import (
    RouteRowsError,
    any_repeated,
    compact_dtype,
    repeats,
)
from miles_periodic.plugins.delta_router_replay.wire import any_outside


def own_routes(routes: Sequence[np.ndarray], share: RankShare, shape: RouteShape) -> np.ndarray:
    """The rank's routes (l, P, K) of one micro-batch, compact; 0 where padded.

    routes: the samples of the shard, (rows, L, K) each, of any integer dtypes: one that the server
    sent in full is wider than one that was assembled. Raises RouteRowsError that names rank,
    micro-batch, layer and row where an expert is out of range or comes twice: dispatching such
    a row hangs or kills an all-to-all of other ranks.
    """
    layers = np.asarray(share.layers, np.int64)
    _check_layers(routes, layers, share)
    ends = np.cumsum([len(rows) for rows in routes])
    rows = np.asarray(share.rows, np.int64)
    own = np.zeros((len(layers), len(rows), shape.top_k), compact_dtype(shape.num_experts))
    sample_of = np.searchsorted(ends, rows, side="right")
    for sample in np.unique(sample_of[rows >= 0]):
        positions = np.flatnonzero((sample_of == sample) & (rows >= 0))
        first = ends[sample] - len(routes[sample])
        taken = _taken(routes[sample], rows[positions] - first, layers)
        _check_experts(taken, share, shape, int(sample), rows[positions] - first)
        own[:, positions] = taken.swapaxes(0, 1)
    return own


def share_bytes(share: RankShare, shape: RouteShape) -> int:
    """Bytes of what `own_routes` makes."""
    itemsize = compact_dtype(shape.num_experts).itemsize
    return len(share.layers) * len(share.rows) * shape.top_k * itemsize


def _taken(rows: np.ndarray, wanted: np.ndarray, layers: np.ndarray) -> np.ndarray:
    """rows[wanted][:, layers], without a copy of the layers that are not wanted."""
    return rows[wanted[:, None], layers]


def _check_layers(routes: Sequence[np.ndarray], layers: np.ndarray, share: RankShare) -> None:
    for sample, rows in enumerate(routes):
        if len(layers) and not 0 <= layers.min() <= layers.max() < rows.shape[1]:
            raise RouteRowsError(
                f"rank {share.rank} has routers in layers {layers.tolist()}, but the routes have "
                f"{rows.shape[1]} layers",
                request_id=f"of sample {sample}",
                end_row=len(rows),
            )


def _check_experts(
    taken: np.ndarray, share: RankShare, shape: RouteShape, sample: int, wanted: np.ndarray
) -> None:
    if not (any_outside(taken, shape.num_experts) or any_repeated(taken)):
        return
    bad = ((taken < 0) | (taken >= shape.num_experts)).any(axis=-1) | repeats(taken)
    position, router = np.argwhere(bad)[0]
    row = int(wanted[position])
    raise RouteRowsError(
        f"rank {share.rank}, micro-batch {share.micro_batch}, layer {share.layers[router]}, row "
        f"{row}: {taken[position, router].tolist()} are no {shape.top_k} of {shape.num_experts} "
        "experts",
        request_id=f"of sample {sample}",
        first_row=row,
        end_row=row + 1,
    )
