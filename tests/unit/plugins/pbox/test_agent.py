"""An agent before it holds anything."""

import os

import pytest

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.agent.agent import make_agent
from miles_periodic.plugins.pbox.agent.settings import AgentSettings


def test_an_agent_that_is_not_root_says_so_before_it_touches_anything(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PeriodicError, match="Run it as root"):
        make_agent(AgentSettings(state_dir=tmp_path / "state"))
    assert not (tmp_path / "state").exists()


def test_a_runsc_that_is_not_there_is_an_error_that_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(PeriodicError, match="apt-get install runsc"):
        make_agent(AgentSettings(state_dir=tmp_path / "state", runsc="no-such-runsc"))


@pytest.mark.parametrize("cpus", ["a", "1-", ","])
def test_what_is_no_list_of_cpus_is_refused(cpus):
    with pytest.raises(ValueError):
        AgentSettings(cpus=cpus)
