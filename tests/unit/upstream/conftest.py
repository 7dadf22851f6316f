"""A GitHub on this machine, and a cache of its own."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location(
    "github_server", Path(__file__).with_name("github_server.py")
)
github_server = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(github_server)


@pytest.fixture
def github():
    with github_server.running() as fake:
        yield fake


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
