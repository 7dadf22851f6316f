"""`bench pbox` where its agent does not start."""

import pytest

from miles_periodic.cli.bench.pbox import _listening
from miles_periodic.cli.pbox import child_agent
from miles_periodic.hooks.errors import PeriodicError


def test_an_agent_that_does_not_start_is_an_error_with_what_it_said(monkeypatch, tmp_path):
    program = "import sys; sys.exit('There is no image base.')"
    monkeypatch.setattr(child_agent, "_MAIN", program)
    with (
        pytest.raises(PeriodicError, match="did not start") as failed,
        _listening(tmp_path, "ptrace", tmp_path / "images"),
    ):
        pass
    assert failed.value.parts["found"] == "There is no image base."
