"""Failures that no command line shows, each brought about in the code that reports it.

`make_transcripts.py` puts what they say into failures.md, under the function's name.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from miles_periodic.compat.catalog import bindings_named
from miles_periodic.compat.matrix.releases import release_named
from miles_periodic.compat.matrix.wheels import unpacked
from miles_periodic.compat.plan import make_plan
from miles_periodic.compat.roll_call.roll import Roll
from miles_periodic.hooks import Feature, PeriodicError, RolloutState, TrainBatch, hookimpl
from miles_periodic.hooks.manager import build_manager
from miles_periodic.hooks.values import RouteAnswer, RouteShape
from miles_periodic.plugins import features
from miles_periodic.plugins.chunked_checkpoint_staging.feature import ChunkedCheckpointStaging
from miles_periodic.plugins.cost_aware_packing.feature import CostAwarePacking
from miles_periodic.plugins.delta_router_replay.feature import DeltaRouterReplay
from miles_periodic.plugins.fused_linear_cross_entropy.settings import SLUG as LOSS
from miles_periodic.plugins.kv_preservation.feature import KVPreservation


def unknown_shape() -> str:
    """A tree whose target has a body that the adapter was not written for."""
    release = release_named("megatron-core==0.15.3")
    trees = release.trees(unpacked(release))
    first, *_ = make_plan(features(), [LOSS], trees, environment={}).problems()
    return str(first)


def async_save() -> str:
    """A command line of Miles that a feature cannot work with."""
    arguments = {"save": "checkpoints", "ckpt_format": "torch_dist", "async_save": True}
    return _said(lambda: ChunkedCheckpointStaging().complete_arguments(arguments))


def one_decision_twice() -> str:
    """Two features that replace one decision."""

    class SplitByRegion(Feature):
        slug = "split-by-region"
        why, exit = "Samples go to the ranks of their region.", "Miles does it."

        @hookimpl
        def split_train_batch(self, batch: TrainBatch) -> None:
            return None

    return _said(lambda: build_manager([CostAwarePacking(), SplitByRegion()]))


def nothing_bound() -> str:
    """What is missing at the end of a run whose processes imported no target."""
    names = ("launch/arguments", "launch/muster", "routing/rollout-key")
    return "\n".join(f"roll call failed {each}." for each in Roll(bindings_named(names)).missing())


def dropped_routes() -> str:
    """A router that drops the field for routes, found by the proof before the first rollout."""
    (proof,) = DeltaRouterReplay().server_proofs({"return_routed_experts": True})
    return _said(lambda: proof.check([{"meta_info": {}}, {"meta_info": {}}]))


def ignored_salt() -> str:
    """A server that reuses KV across salts, found by the proof before the first rollout."""
    (proof,) = KVPreservation().server_proofs({})
    answers = [{"meta_info": {"cached_tokens": cached}} for cached in (0, 31)]
    return _said(lambda: proof.check(answers))


def wrong_routes() -> str:
    """A response with an expert that the model does not have."""
    row, expert = np.arange(5)[:, None, None], np.arange(8)
    rows = np.broadcast_to(row + expert, (5, 2, 8)).astype(np.int32)
    rows[3, 1, 0] = 300
    answer = RouteAnswer(rows, request_id="rid-7f3a")
    return _said(
        lambda: DeltaRouterReplay().routed_experts_of_response(
            RolloutState(), list(range(6)), answer, RouteShape(2, 8, 256)
        )
    )


def long_sample() -> str:
    """A sample that fits no micro-batch."""
    model = {"hidden_size": 4096, "num_layers": 48, "num_attention_heads": 32}
    model |= {"ffn_hidden_size": 8192, "vocab_size": 151936}
    batch = TrainBatch([9000, 40000, 700, 5000], 2, 4, None, 32768, model=model)
    return _said(lambda: CostAwarePacking().split_train_batch(batch))


def _said(fails: Callable[[], object]) -> str:
    try:
        fails()
    except PeriodicError as error:
        return str(error)
    raise RuntimeError("what should fail did not")
