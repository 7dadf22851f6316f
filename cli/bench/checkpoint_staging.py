"""`miles bench checkpoint-staging`: host memory and time of a save, with the feature or not."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from miles_periodic.compat.catalog import binding_names, bindings_named
from miles_periodic.compat.drift import without_known_shape
from miles_periodic.compat.manifest import FeatureReference, RunManifest
from miles_periodic.compat.roll_call.server import RollCallServer
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.chunked_checkpoint_staging.feature import ChunkedCheckpointStaging
from miles_periodic.plugins.chunked_checkpoint_staging.settings import (
    SLUG,
    ChunkedCheckpointStagingSettings,
)

REPEATS = 3
SAVES_TIMEOUT_SECONDS = 900
SAVER = "miles_periodic.compat.bench.checkpoint_saves"
STOCK = "Megatron alone"
IN_PLACE = "feature, tensors in host memory"
COPIED = "feature, every tensor copied as from a GPU"
ON_GPU = "feature, tensors on the GPU"


def checkpoint_staging_command(
    megatron: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The folder that holds Megatron's package; without it, the installed one.",
        ),
    ] = None,
    mebibytes: Annotated[int, typer.Option(min=16, help="Size of the checkpoint.")] = 1024,
    staging_mebibytes: Annotated[int, typer.Option(min=1, help="The feature's bound.")] = 64,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the host memory and the time that a save takes, on this machine and its disk.

    The tensors are parts of flat buffers, on the GPU where there is one; otherwise in host memory,
    and Megatron clones them before it writes. Exits with 1 where the feature took more memory than
    its bound and a tenth of the checkpoint.
    """
    from miles_periodic.cli.bench.table import show

    result = measure(megatron, mebibytes, staging_mebibytes)
    show(f"A save of {mebibytes:,} MiB by one rank", result, json_output)
    allowed = staging_mebibytes + mebibytes / 10
    if any(row["host_MiB"] > allowed for row in result["rows"] if row["save"] != STOCK):
        raise typer.Exit(1)


def measure(megatron: Path | None, mebibytes: int, staging_mebibytes: int) -> dict[str, Any]:
    """Median seconds, most host memory and files of each kind of save.

    Raises PeriodicError where there is no Megatron, or one of an unknown shape.
    """
    tree = Tree.at("megatron", megatron) if megatron else Tree.installed("megatron")
    names = _known_bindings(tree)
    settings = ChunkedCheckpointStagingSettings(staging_bytes=staging_mebibytes << 20)
    feature = FeatureReference.of(ChunkedCheckpointStaging, settings)
    bindings = bindings_named(names)
    saves: dict[str, list[dict[str, Any]]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="checkpoint-staging-") as work,
        RollCallServer(list(bindings), run_id="bench") as roll_call,
    ):
        manifest = RunManifest("bench", roll_call.address, roll_call.token, (feature,), bindings)
        plain = dict(os.environ)
        if megatron:
            parent = str(tree.portions[0].parent)
            plain["PYTHONPATH"] = os.pathsep.join(
                [parent, *filter(None, [plain.get("PYTHONPATH")])]
            )
        bound = plain | manifest.environment()
        for kind in _kinds():
            flags = ["--as-on-a-gpu"] if kind == COPIED else []
            environment = plain if kind == STOCK else bound
            saves[kind] = _saves(Path(work) / "checkpoint", mebibytes, flags, environment)
        roll_call.require_applied()
    return {
        "rows": [_row(kind, measured) for kind, measured in saves.items()],
        "bound_MiB": staging_mebibytes,
        "saves_each": REPEATS,
        "tree": tree.name,
    }


def _kinds() -> tuple[str, ...]:
    import torch

    return (STOCK, ON_GPU) if torch.cuda.is_available() else (STOCK, IN_PLACE, COPIED)


def _known_bindings(tree: Tree | None) -> tuple[str, ...]:
    names = binding_names(SLUG, "megatron", tree) if tree else ()
    unknown = without_known_shape(names, tree) if tree else ("megatron",)
    if tree is None or unknown:
        raise PeriodicError(
            f"{SLUG} cannot be measured here: no known shape of {', '.join(unknown)}.",
            feature=SLUG,
            tree=tree.name if tree else "not installed",
            remedy="Install miles-rl 0.0.2, or give --megatron a tree of a known release.",
        )
    return names


def _saves(
    folder: Path, mebibytes: int, flags: list[str], environment: Mapping[str, str]
) -> list[dict[str, Any]]:
    """What the saves of one kind measured, all in one process."""
    command = [sys.executable, "-m", SAVER, str(folder), str(mebibytes), str(REPEATS), *flags]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=SAVES_TIMEOUT_SECONDS
    )
    if done.returncode:
        raise PeriodicError(
            f"The saves that were to be measured failed: {done.stderr.strip()[-2000:]}.",
            remedy="Free disk space where temporary files go, or give fewer --mebibytes.",
        )
    return json.loads(done.stdout.splitlines()[-1])


def _row(kind: str, measured: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "save": kind,
        "host_MiB": round(max(one["host_bytes"] for one in measured) / (1 << 20)),
        "seconds": statistics.median(one["seconds"] for one in measured),
        "files": measured[0]["files"],
    }
