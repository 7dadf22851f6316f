"""The trees of Miles that tests run: the wheel's always, git main's where `MILES_TREE` names it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

WHEEL = Path(importlib.util.find_spec("miles").submodule_search_locations[0]).parent
CHECKOUT = os.environ.get("MILES_TREE")

#: Line of Miles to the folder that holds its package `miles`.
TREES = {"wheel": WHEEL} | ({"main": Path(CHECKOUT)} if CHECKOUT else {})
#: Line of Miles to the recorded tree whose shapes it has, as compat/matrix/called.toml names it.
MAIN = "miles-main-31f1ca961"
LABELS = {"wheel": "miles-rl-0.0.2", "main": MAIN}
