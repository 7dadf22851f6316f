"""Where this package keeps what it fetched and can fetch again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder in the user's cache, by the XDG rule; it may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "miles-periodic"
