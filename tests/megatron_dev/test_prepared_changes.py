"""What is ready to be sent to Megatron: proved on files of main, and refused on those of dev."""

import pytest
from repositories import git, repository
from typer.testing import CliRunner

from miles_periodic.cli import upstream
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks import PeriodicError
from miles_periodic.upstream.contributions import contributions

CHANGES = [change for change in contributions().values() if change.upstream == "megatron"]
ONLY_ON_MAIN = "megatron.core.datasets.data_schedule:PackingSchedulerEnum"


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_a_change_is_proved_by_its_own_tests(change, megatron_tree, monkeypatch, tmp_path):
    folder = repository(megatron_tree, tmp_path / "megatron")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--noconftest")
    words = ["prepare", change.name, "--checkout", str(folder), "--test"]
    if Tree.at("megatron", folder).find(ONLY_ON_MAIN) is None:
        with pytest.raises(PeriodicError, match="not what the change"):
            CliRunner().invoke(upstream.app, words, catch_exceptions=False)
        return
    CliRunner().invoke(upstream.app, words, catch_exceptions=False)
    subjects = git(folder, "log", "--reverse", "--format=%s", f"main..{change.branch}").splitlines()
    assert subjects == [step.subject for step in change.steps]
