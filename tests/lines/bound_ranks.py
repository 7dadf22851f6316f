"""What is bound in the ranks of a script of this folder: as in a run, by Python's boot line.

Scripts that put bindings in and out of their process, or in later, are not here: they join by
`lone_process`, for a roll call would end them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from miles_periodic.compat.catalog import binding_names, bindings_named
from miles_periodic.compat.manifest import FeatureReference, RunManifest
from miles_periodic.compat.roll_call.server import RollCallServer
from miles_periodic.compat.tree import Tree

#: So little that a tiny model is many chunks.
WORKSPACE_BYTES, CHUNK_BYTES = 48 << 10, 6 << 10

OFFLOAD = FeatureReference(
    "chunked-optimizer-offload",
    "miles_periodic.plugins.chunked_optimizer_offload.feature:ChunkedOptimizerOffload",
    {"workspace_bytes": WORKSPACE_BYTES, "chunk_bytes": CHUNK_BYTES},
)
BOUND = {"offloaded_training.py": OFFLOAD, "quantised_training.py": OFFLOAD}


@contextlib.contextmanager
def roll_call_of(script: str, tree: Path) -> Iterator[RollCallServer | None]:
    """A roll call for the processes of a script, or None where nothing is bound in them."""
    feature = BOUND.get(script)
    if feature is None:
        yield None
        return
    bindings = bindings_named(binding_names(feature.slug, "megatron", Tree.at("megatron", tree)))
    with RollCallServer(bindings, run_id=f"ranks-{os.getpid()}") as roll_call:
        yield roll_call


def gate(script: str, roll_call: RollCallServer | None) -> dict[str, str]:
    """The variables by which the boot line lets a process of that script join."""
    if roll_call is None:
        return {}
    manifest = RunManifest(
        roll_call.run_id,
        roll_call.address,
        roll_call.token,
        (BOUND[script],),
        roll_call.roll.bindings,
        ends_with_launcher=True,
    )
    return manifest.environment()


def called_by(roll_call: RollCallServer, pids: Sequence[int]) -> list[dict[str, int]]:
    """Binding to how often each of some processes that have ended called it.

    Raises AssertionError where one of the run's processes failed, or one of these never joined.
    """
    for pid in pids:
        roll_call.hear_out(pid)
    assert not roll_call.roll.failures, roll_call.roll.failures
    by_pid = {entry.pid: dict(entry.consulted) for entry in roll_call.roll.entries}
    assert by_pid.keys() >= set(pids), "a rank did not join: is the boot line installed?"
    return [by_pid[pid] for pid in pids]
