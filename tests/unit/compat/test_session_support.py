"""A session server that a feature should reach and cannot is refused by name, and nothing else."""

import pytest

from miles_periodic.compat.catalog import SESSION_BINDINGS, every_name
from miles_periodic.compat.session_support import refuse_without_sessions, with_sessions
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks import Evidence, Inject, Native, PeriodicError

SLUG = "delta-router-replay"
OLDER = ("session/begin", "session/proxy", "session/record", "session/assemble-closures")
ARGUMENTS = {"use_session_server": True}


@pytest.fixture
def strange_tree(tmp_path):
    """A Miles whose session server is another one."""
    file = tmp_path / "miles" / "rollout" / "session" / "linear_trajectory.py"
    file.parent.mkdir(parents=True)
    file.write_text("class SessionRegistry:\n    def get_session(self):\n        return 1\n")
    return Tree.at("miles", tmp_path)


def test_a_tree_whose_session_server_is_unknown_has_the_feature_without_it(strange_tree):
    decision = Inject("asks for all rows", (Evidence("miles/a.py", 1, "seen"),), ("rollout/scope",))
    found = with_sessions(decision, SLUG, strange_tree, accept_drift=False)
    assert found.bindings == decision.bindings
    assert "no session server" in found.reason


def test_a_feature_that_binds_nothing_gets_nothing_more(strange_tree):
    assert with_sessions(Native("it has it"), SLUG, strange_tree, False) == Native("it has it")


def test_a_session_server_that_cannot_be_bound_is_refused_by_name():
    with pytest.raises(PeriodicError, match="take the feature out with -delta-router-replay"):
        refuse_without_sessions([SLUG], [], ARGUMENTS)


def test_what_another_feature_bound_of_it_is_not_enough():
    with pytest.raises(PeriodicError, match=SLUG):
        refuse_without_sessions([SLUG, "kv-preservation"], OLDER[:3], ARGUMENTS)


def test_a_session_server_with_all_its_bindings_is_taken():
    refuse_without_sessions([SLUG, "kv-preservation"], OLDER, ARGUMENTS)
    every = every_name(SESSION_BINDINGS[SLUG]["miles"])
    refuse_without_sessions([SLUG], every, ARGUMENTS)


def test_a_run_without_a_session_server_is_left_alone():
    refuse_without_sessions([SLUG], [], {"use_session_server": False})
    refuse_without_sessions([SLUG], [], {})


def test_a_feature_that_does_nothing_in_sessions_is_left_alone():
    refuse_without_sessions([], [], ARGUMENTS)
