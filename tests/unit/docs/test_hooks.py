"""The hooks' page says what the hook specs say, word for word."""

import inspect
from pathlib import Path

import pytest

from miles_periodic.hooks import launching, rollout, training
from miles_periodic.plugins import features

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "hooks.md").read_text(encoding="utf-8")
SPECS = {
    name: function
    for module in (launching, rollout, training)
    for name, function in vars(module).items()
    if hasattr(function, "miles-periodic_spec")
}


@pytest.mark.parametrize("name", SPECS)
def test_the_page_has_each_hook_with_its_exact_signature(name):
    signature = str(inspect.signature(SPECS[name])).replace("'", "")
    assert f"### `{name}{signature}`\n" in PAGE


@pytest.mark.parametrize("name", SPECS)
def test_the_page_has_each_hooks_paragraph(name):
    assert inspect.cleandoc(SPECS[name].__doc__) in PAGE


@pytest.mark.parametrize("name", SPECS)
def test_each_argument_is_explained(name):
    for argument in inspect.signature(SPECS[name]).parameters:
        assert f"`{argument}`" in SPECS[name].__doc__


@pytest.mark.parametrize("name", SPECS)
def test_some_feature_of_ours_lives_by_each_hook(name):
    assert any(hasattr(feature, name) for feature in features())


def test_the_page_has_no_hook_that_does_not_exist():
    headings = [line for line in PAGE.splitlines() if line.startswith("### `")]
    assert {line[5:].partition("(")[0] for line in headings} == set(SPECS)
