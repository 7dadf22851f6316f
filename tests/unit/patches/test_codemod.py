"""A point goes behind a module's last line, and comes out again byte by byte."""

import ast
import itertools
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.patches import codemod
from miles_periodic.patches.codemod import (
    PointInFile,
    check,
    put_in,
    without_point,
    without_points,
)
from miles_periodic.patches.states import Applied, Conflict, Ready, state_of

FILE = "miles/a.py"
SOURCE = b"class Loop:\n    def turn(self):\n        return 1\n"


def in_file(feature="packing", names=("rollout/turn",), targets=("Loop.turn",)):
    return PointInFile(FILE, feature, tuple(names), tuple(targets))


def patched(source, *points):
    return put_in(points or [in_file()], {FILE: source})[FILE]


HEAD = ("# -*- coding: utf-8 -*-", "class Loop:", "    def turn(self): pass")
#: A module in pieces: line ends, comments at the end, unfinished lines, other alphabets.
LINES = st.sampled_from(["x = 1", "# Größe", "", "    ", "def f():\n    return '''a\n\n'''", "'é'"])
TEXTS = st.builds(
    lambda lines, ending, end: ("\n".join([*HEAD, *lines]) + end).replace("\n", ending),
    st.lists(LINES, max_size=5),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["", "\n"]),
)


@settings(max_examples=60)
@given(TEXTS, st.permutations(["first", "second", "third"]))
def test_points_go_in_and_come_out_in_any_order_without_a_trace(text, order):
    source = text.encode()
    after = source
    for feature in ("first", "second", "third"):
        after = patched(after, in_file(feature))
    assert after.startswith(source)
    ast.parse(after)
    assert without_points(after, FILE) == source
    for feature in order:
        assert in_file(feature).is_in(after)
        after = without_point(after, feature, FILE)
    assert after == source


def test_several_points_are_put_in_at_once_as_one_after_the_other():
    points = [in_file("first"), in_file("second")]
    assert patched(SOURCE, *points) == patched(patched(SOURCE, points[0]), points[1])


def test_what_others_change_after_it_stays_when_a_point_comes_out():
    after = patched(SOURCE).replace(b"return 1", b"return 2") + b"more = 1\n"
    assert without_point(after, "packing", FILE) == SOURCE.replace(b"1", b"2") + b"more = 1\n"


def test_a_file_without_a_point_is_as_it_is():
    assert without_point(SOURCE, "packing", FILE) == SOURCE


def test_a_point_is_put_in_once():
    assert put_in([in_file()], {FILE: patched(SOURCE)}) == {}


def test_a_point_that_was_changed_does_not_come_out():
    after = patched(SOURCE).replace(b'"rollout/turn",', b'"rollout/turn", "mine",')
    with pytest.raises(PeriodicError, match="Take those lines out by hand"):
        without_point(after, "packing", FILE)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (SOURCE.replace(b"def turn", b"def step"), "a definition of turn"),
        (SOURCE.replace(b"Loop", b"Ring"), "a definition of Loop"),
        (SOURCE.replace(b"):", b":"), "a source file without syntax errors"),
    ],
)
def test_a_file_without_the_structure_is_in_conflict(source, expected):
    state = state_of([in_file()], {FILE: source})
    assert isinstance(state, Conflict)
    assert (state.file, state.expected) == (FILE, expected)
    with pytest.raises(PeriodicError):
        check([in_file()], {FILE: source})


def test_the_states_are_told_apart():
    point = in_file()
    assert state_of([point], {FILE: SOURCE}, ["a:b"]) == Ready((FILE,), ("a:b",))
    assert state_of([point], {FILE: patched(SOURCE)}) == Applied((FILE,))


@pytest.mark.parametrize("change", [(b"# <<< miles", b"# <<<miles"), (b"rollout/turn", b"other/x")])
def test_a_point_of_another_writing_is_a_conflict_and_no_second_one_is_put_in(change):
    state = state_of([in_file()], {FILE: patched(SOURCE).replace(*change)})
    assert isinstance(state, Conflict)
    assert state.remedy.startswith("Run: miles patches revert packing")


def test_points_in_some_of_the_files_are_a_conflict():
    points = [in_file(), PointInFile("miles/b.py", "packing", ("a/b",), ("Loop",))]
    sources = {FILE: patched(SOURCE), "miles/b.py": SOURCE}
    state = state_of(points, sources)
    assert isinstance(state, Conflict)
    assert (state.file, state.found[:8]) == ("miles/b.py", "1 of 2 p")


def test_without_libcst_it_is_said_what_to_install(monkeypatch):
    codemod._module.cache_clear()
    monkeypatch.delitem(sys.modules, "miles_periodic.patches.definitions", raising=False)
    monkeypatch.setattr(sys.modules["miles_periodic.patches"], "definitions", None, raising=False)
    monkeypatch.delattr(sys.modules["miles_periodic.patches"], "definitions")
    monkeypatch.setitem(sys.modules, "libcst", None)
    with pytest.raises(PeriodicError, match=r"Install miles-periodic\[patches\]"):
        check([in_file()], {FILE: SOURCE})


def test_every_order_of_two_features_gives_the_same_points():
    first, second = in_file("first"), in_file("second")
    for pair in itertools.permutations([first, second]):
        assert state_of([first], {FILE: patched(SOURCE, *pair)}) == Applied((FILE,))
