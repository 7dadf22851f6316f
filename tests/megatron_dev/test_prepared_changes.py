"""What is ready to be sent to Megatron: proved on the branch that has its targets, or refused."""

import pytest
from repositories import git, repository
from typer.testing import CliRunner

from miles_periodic.cli import upstream
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks import PeriodicError
from miles_periodic.upstream.contributions import contributions

CHANGES = [change for change in contributions().values() if change.upstream == "megatron"]
#: A target that only main has, or only dev.
TARGETS = {
    "cost-aware-packing": "megatron.core.datasets.data_schedule:PackingSchedulerEnum",
    "chunked-optimizer-offload": "megatron.core.optimizer.cpu_offloading"
    ".chunked_optimizer_state_offload:ChunkedOptimizerStateOffloader",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_a_change_is_proved_by_its_own_tests(change, megatron_tree, monkeypatch, tmp_path):
    folder = repository(megatron_tree, tmp_path / "megatron")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--noconftest")
    words = ["prepare", change.name, "--checkout", str(folder), "--test"]
    if Tree.at("megatron", folder).find(TARGETS[change.name]) is None:
        with pytest.raises(PeriodicError, match="not what the change"):
            CliRunner().invoke(upstream.app, words, catch_exceptions=False)
        return
    CliRunner().invoke(upstream.app, words, catch_exceptions=False)
    subjects = git(folder, "log", "--reverse", "--format=%s", f"main..{change.branch}").splitlines()
    assert subjects == [step.subject for step in change.steps]
