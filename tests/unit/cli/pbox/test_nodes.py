"""How the nodes of a job find each other's agents in a folder."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from miles_periodic.cli.pbox.nodes import Meeting, meeting_of_this_step
from miles_periodic.hooks.errors import PeriodicError


def test_all_nodes_have_one_token_and_all_addresses_their_own_first(tmp_path):
    folder = tmp_path / "deep/meet"

    def node(number):
        """As short as a command can be: it leaves when it has met."""
        meeting = Meeting(folder, number, 3, meet_seconds=120)
        token = meeting.token()
        addresses = meeting.addresses(f"a{number}")
        meeting.leave()
        return token, addresses, folder.exists() and folder.stat().st_mode & 0o077

    with ThreadPoolExecutor(3) as nodes:
        met = list(nodes.map(node, range(3)))
    assert len({token for token, _, _ in met}) == 1
    assert [addresses[0] for _, addresses, _ in met] == ["a0", "a1", "a2"]
    assert all(sorted(addresses) == ["a0", "a1", "a2"] for _, addresses, _ in met)
    assert not any(others_may for _, _, others_may in met)
    assert not folder.exists()


def test_a_node_that_does_not_come_is_named_with_what_to_do(tmp_path):
    meeting = Meeting(tmp_path / "meet", 0, 2, meet_seconds=0.0)
    meeting.token()
    with pytest.raises(PeriodicError, match="(?s)agent-1 did not come.*--ntasks-per-node=1"):
        meeting.addresses("a0")


def test_outside_of_slurm_sharing_is_refused(monkeypatch, tmp_path):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(PeriodicError, match="SLURM_JOB_ID"):
        meeting_of_this_step(tmp_path)


def test_a_requeued_job_meets_anew(monkeypatch, tmp_path):
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "SLURM_NODEID": "1"}.items():
        monkeypatch.setenv(name, value)
    first = meeting_of_this_step(tmp_path)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    second = meeting_of_this_step(tmp_path)
    assert (first.folder != second.folder, first.node, first.num_nodes) == (True, 1, 2)
