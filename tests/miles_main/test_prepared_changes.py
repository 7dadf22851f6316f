"""What is ready to be sent to Miles, on the files of its git main: proved by its own tests."""

import os

import pytest
from repositories import git, repository
from typer.testing import CliRunner

from miles_periodic.cli import upstream
from miles_periodic.upstream.contributions import contributions

CHANGES = [change for change in contributions().values() if change.upstream == "miles"]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_a_change_is_proved_by_its_own_tests(
    change, miles_tree, sglang_path, monkeypatch, tmp_path
):
    """Main imports more of SGLang than the rehearsal's has; its own conftest needs yet more."""
    folder = repository(miles_tree, tmp_path / "miles")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--noconftest")
    more = [*map(str, sglang_path("0.5.16")), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, more)))
    words = ["prepare", change.name, "--checkout", str(folder), "--test"]
    CliRunner().invoke(upstream.app, words, catch_exceptions=False)
    subjects = git(folder, "log", "--reverse", "--format=%s", f"main..{change.branch}").splitlines()
    assert subjects == [step.subject for step in change.steps]
