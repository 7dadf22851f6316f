"""What a target holds besides its shards: the config, a manifest, and what is carried over."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from miles_periodic.plugins.fast_resharding.dcp_checkpoint import Checkpoint
from miles_periodic.plugins.fast_resharding.families.table import Family
from miles_periodic.plugins.fast_resharding.model_config import ModelConfig
from miles_periodic.plugins.fast_resharding.quantising import (
    CONFIG_ENTRY,
    QUANTISATION_FILES,
    QUANTISATIONS,
)
from miles_periodic.plugins.fast_resharding.shard_layout import Layout
from miles_periodic.plugins.fast_resharding.targets import Target
from miles_periodic.plugins.fast_resharding.tasks import Task

MANIFEST = "reshard.json"


def published_config(config: ModelConfig, targets: Sequence[Target]) -> bytes:
    """The config with what a user changed, and with the quantisation that was written, if any.

    Its element type is the one that most of what is not quantised has.
    """
    values = {k: v for k, v in config.values.items() if k not in QUANTISATIONS}
    sizes: Counter[str] = Counter()
    for target in targets:
        sizes[target.element.name] += 0 if target.scales else target.num_bytes
        if target.scales:
            values["quantization_config"] = CONFIG_ENTRY
    (most, _), *_ = sizes.most_common(1)
    for name in {"torch_dtype", "dtype"} & values.keys() or {"dtype"}:
        values[name] = most
    return (json.dumps(values, indent=2) + "\n").encode()


def manifest(
    checkpoint: Checkpoint,
    family: Family,
    layout: Layout,
    tasks: Sequence[Task],
    checksums: Mapping[int, Sequence[str]],
) -> bytes:
    """JSON: every shard's stretches, [[[first byte, bytes], …], XXH3-64 of them together].

    checksums: of each task's units, by the task's number.
    """
    shards: dict[str, dict[str, Any]] = {
        shard.name: {"bytes": shard.num_bytes, "stretches": []} for shard in layout.shards
    }
    for task in tasks:
        for unit, found in zip(task.units, checksums[task.number], strict=True):
            shards[unit.shard]["stretches"].append([unit.extents, found])
    told = {
        "schema": 1,
        "source": str(checkpoint.folder),
        "checkpoint": checkpoint.digest,
        "family": family.name,
        "shards": shards,
    }
    return json.dumps(told).encode()


def files_to_carry(folder: Path) -> Sequence[Path]:
    """What a model's folder holds besides weights: tokenizer, templates, code, configs.

    Without what says how those weights were quantised: others are written.
    """
    return [
        path
        for path in sorted(folder.iterdir())
        if path.is_file()
        and not path.name.startswith(".")
        and path.suffix in {".json", ".jinja", ".model", ".py", ".tiktoken", ".txt"}
        and not path.name.endswith(".index.json")
        and path.name not in QUANTISATION_FILES
    ]
