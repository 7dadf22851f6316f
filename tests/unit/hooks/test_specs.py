"""Each hook spec is one decision that is explained, and that some feature takes."""

import inspect

import pytest

from miles_periodic.hooks import checkpointing, launching, rollout, routing, serving, training
from miles_periodic.plugins import features

SPECS = {
    name: function
    for module in (checkpointing, launching, rollout, routing, serving, training)
    for name, function in vars(module).items()
    if hasattr(function, "miles-periodic_spec")
}


@pytest.mark.parametrize("name", SPECS)
def test_each_argument_is_explained(name):
    for argument in inspect.signature(SPECS[name]).parameters:
        assert f"`{argument}`" in SPECS[name].__doc__


@pytest.mark.parametrize("name", SPECS)
def test_some_feature_of_ours_lives_by_each_hook(name):
    assert any(hasattr(feature, name) for feature in features())
