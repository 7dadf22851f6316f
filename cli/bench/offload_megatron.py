"""The same step under an unmodified Megatron's DistributedOptimizer, each contender by itself.

A contender is a process: its memory is its own, and bindings are in one of them only.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from miles_periodic.compat.bench.optimizer_step import (
    CONTENDERS,
    HYBRID,
    OFFLOADED,
    MegatronOutcome,
    MegatronTask,
)
from miles_periodic.compat.catalog import binding_names, bindings_named
from miles_periodic.compat.cpu.environment import cpu_environment
from miles_periodic.compat.manifest import FeatureReference, RunManifest
from miles_periodic.compat.roll_call.server import RollCallServer
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins import features

if TYPE_CHECKING:
    from miles_periodic.cli.bench.offload_contest import Rank, Task

LIMIT_SECONDS = 400


def measure_megatron(
    tree: Path, task: Task, rank: Rank, tell: Callable[[str], None]
) -> dict[str, MegatronOutcome]:
    """The slowest rank's outcome of each contender. Every rank calls it.

    tree: the folder that holds `megatron`, or that package. Raises PeriodicError with what a
    process wrote where one fails.
    """
    found = Tree.at("megatron", tree)
    outcomes = {}
    for contender in CONTENDERS:
        if rank.device.type == "cpu" and contender == HYBRID:
            # Its state goes to the CPU only where there is something else.
            continue
        tell(f"stepping Megatron's {task.num_parameters:,} parameters: {contender}")
        outcomes[contender] = _contest(contender, found, task, rank)
    return outcomes


def _contest(contender: str, tree: Tree, task: Task, rank: Rank) -> MegatronOutcome:
    folder = tree.portions[0].parent
    with tempfile.TemporaryDirectory(prefix="optimizer-contest-") as own:
        shared = rank.everyone(own)[0]
        answer = Path(own) / "answer.json"
        one = MegatronTask(
            contender,
            task.num_parameters,
            task.num_steps,
            rank.number,
            rank.count,
            f"{shared}/rendezvous",
            str(answer),
        )
        with _gate(contender, tree, task, answer) as gate:
            path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
            quiet = cpu_environment() if rank.device.type == "cpu" else {}
            environment = {**os.environ, **quiet, **gate, "PYTHONPATH": path}
            written = _run(one, environment)
        answers = rank.everyone(json.loads(answer.read_text("utf-8")) if answer.exists() else None)
    if None in answers:
        raise PeriodicError(
            f"The process of {contender!r} on rank {answers.index(None)} failed.",
            tree=str(folder),
            found=written[-2000:],
            remedy="Change what it names, or leave out --megatron.",
        )
    return max((MegatronOutcome(**each) for each in answers), key=lambda outcome: outcome.seconds)


def _run(task: MegatronTask, environment: Mapping[str, str]) -> str:
    """What the process wrote. It is ended when its time is over."""
    command = [sys.executable, "-W", "ignore", "-m", "miles_periodic.compat.bench.optimizer_step"]
    try:
        done = subprocess.run(
            [*command, json.dumps(asdict(task))],
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not done after {LIMIT_SECONDS} s"
    return done.stdout


@contextlib.contextmanager
def _gate(contender: str, tree: Tree, task: Task, answer: Path) -> Iterator[dict[str, str]]:
    """The environment in which the feature's bindings are applied, or none of it.

    Raises RollCallError where the process left its answer and never joined.
    """
    if contender != OFFLOADED:
        yield {}
        return
    bindings = bindings_named(binding_names(OFFLOADED, "megatron", tree))
    with RollCallServer(bindings, run_id="bench") as roll_call:
        yield RunManifest(
            "bench",
            roll_call.address,
            roll_call.token,
            features=(_feature(task),),
            bindings=bindings,
        ).environment()
        if answer.exists():
            roll_call.require_joined()


def _feature(task: Task) -> FeatureReference:
    (kind,) = [feature for feature in features() if feature.slug == OFFLOADED]
    settings: dict[str, Any] = {
        "workspace_bytes": task.workspace_bytes,
        "chunk_bytes": task.chunk_bytes,
        "moment_dtype": task.moment_dtype,
    }
    return FeatureReference.of(kind, kind.settings_model(**settings))
