"""Tests on a checkout of Megatron at git dev or main, collected with `MEGATRON_TREE=DIR` only."""

import os
from pathlib import Path

import pytest

collect_ignore_glob = [] if os.environ.get("MEGATRON_TREE") else ["test_*.py"]


@pytest.fixture(scope="session")
def megatron_tree() -> Path:
    """The checkout's folder."""
    return Path(os.environ["MEGATRON_TREE"]).resolve()
