"""The training entry as a module: one command line, one run."""

import runpy
import sys
from types import ModuleType

import pytest


@pytest.fixture
def parsed(monkeypatch):
    """Miles's modules replaced by ones that note each parsing and then stop."""
    seen = []
    arguments, tracking = ModuleType("miles.utils.arguments"), ModuleType("tracking")
    arguments.parse_args = lambda: seen.append(sys.argv[1:]) or "arguments"
    tracking.finish_tracking = lambda: None
    for name in ("miles", "miles.utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "miles.utils.arguments", arguments)
    monkeypatch.setitem(sys.modules, "miles.utils.tracking_utils", tracking)
    monkeypatch.delitem(sys.modules, "miles_periodic.compat.train", raising=False)
    monkeypatch.setattr("asyncio.run", lambda loop: loop.close())
    return seen


def test_the_entry_trains_once(parsed, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train", "--num-rollout", "1"])
    runpy.run_module("miles_periodic.compat.train", run_name="__main__")
    assert parsed == [["--num-rollout", "1"]]
