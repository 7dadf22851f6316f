"""What became of a target from one tree to the next, as people read it."""

import pytest

from miles_periodic.compat.binding import Binding
from miles_periodic.compat.matrix import changes as changes_module
from miles_periodic.compat.matrix.changes import changes
from miles_periodic.compat.tree import Tree

TARGET = "miles.loop:Loop.turn"
BEFORE = """
class Loop:
    def turn(self, tokens):
        '''Takes a turn.'''
        return send(tokens)
"""


@pytest.fixture(autouse=True)
def catalog(monkeypatch):
    binding = Binding("rollout/turn", "miles", TARGET, "adapter:turn")
    monkeypatch.setattr(changes_module, "BINDINGS", {binding.name: binding})


@pytest.fixture
def changed(tmp_path):
    def trees(now, before=BEFORE):
        for name, text in (("before", before), ("now", now)):
            (tmp_path / name / "miles").mkdir(parents=True)
            (tmp_path / name / "miles" / "loop.py").write_text(text)
        return changes(
            ["rollout/turn"],
            Tree.at("miles", tmp_path / "before"),
            Tree.at("miles", tmp_path / "now"),
        )

    return trees


def test_a_target_with_another_comment_and_docstring_is_unchanged(changed):
    assert (
        changed(BEFORE.replace("Takes a turn.", "Talks.").replace("send(", "send(  # x\n  ")) == ()
    )


def test_a_target_that_is_gone_is_said_to_be(changed):
    (change,) = changed("class Loop:\n    pass\n")
    assert (change.target, change.what, change.known) == (TARGET, "gone", False)


def test_a_target_that_came_shows_its_signature(changed):
    (change,) = changed(BEFORE, before="class Loop:\n    pass\n")
    assert (change.what, change.detail) == ("new", ("(self, tokens)",))


def test_a_target_that_neither_tree_has_is_no_change(changed):
    assert changed("x = 1\n", before="x = 2\n") == ()


def test_another_signature_names_the_parameters(changed):
    (change,) = changed(BEFORE.replace("tokens):", "tokens, *, role=None):"))
    assert change.what == "signature"
    assert change.detail[0] == "new parameter: role"


def test_another_body_names_the_calls_and_shows_the_diff(changed):
    (change,) = changed(BEFORE.replace("send(tokens)", "post(tokens, timeout=1)"))
    assert change.what == "body"
    assert change.detail[:2] == ("no longer call: send", "new call: post")
    assert "-    return send(tokens)" in change.detail
    assert "+    return post(tokens, timeout=1)" in change.detail
