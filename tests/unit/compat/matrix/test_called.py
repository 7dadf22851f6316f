"""Which bindings are called where: the list on file, and what is said of what is not on it."""

from pathlib import Path

import pytest

from miles_periodic.compat import fingerprints
from miles_periodic.compat.catalog import BINDINGS
from miles_periodic.compat.matrix import called

ROOT = Path(__file__).parents[4]
PARTS = [(label, test) for label, by_test in called.calls().items() for test in by_test]


@pytest.mark.parametrize(("label", "test"), PARTS, ids=lambda word: str(word))
def test_each_test_that_is_named_holds_the_list_against_what_it_calls(label, test):
    assert "miles_periodic.compat.matrix.called import" in (ROOT / test).read_text("utf-8")


@pytest.mark.parametrize("label", called.calls())
def test_each_tree_is_one_whose_shapes_of_these_targets_are_on_file(label):
    known = fingerprints.known_shapes()
    for name in called.called_in(label):
        for target in BINDINGS[name].targets:
            assert label in {shape.label for shape in known[target]}, target


@pytest.fixture
def one_call(monkeypatch):
    monkeypatch.setattr(called, "calls", lambda: {"a-1": {"test.py": frozenset({"x/called"})}})


def test_a_binding_is_called_where_its_targets_look_as_in_a_tree_in_which_a_test_calls_it(one_call):
    assert called.planned_only({"x/called": ("a-0", "a-1")}) == ()


@pytest.mark.parametrize(
    "bindings", [{"x/called": ("a-2",)}, {"x/called": ()}, {"x/other": ("a-1",)}]
)
def test_it_is_planned_only_in_another_shape_and_where_another_binding_is_called(
    one_call, bindings
):
    assert called.planned_only(bindings) == tuple(bindings)
