"""A tree whose sources are patched, for the tests that also run on an injected one.

`--patched` behind a script's own words: `lone_process.join` then registers no import hook, so that
nothing is bound but by the sources.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from miles_periodic.cli.patches.apply import apply_command

PATCHED = "--patched"
#: How the bindings of a test came into their target.
WAYS = ("injected", "patched")


def patched_copy(upstream: str, tree: Path, feature: str, folder: Path) -> Path:
    """A copy of one package of a tree, below `folder`, with a feature's patch set applied."""
    shutil.copytree(
        tree / upstream, folder / upstream, ignore=shutil.ignore_patterns("__pycache__")
    )
    apply_command(folder, [feature], [upstream])
    return folder
