"""The shape of a row, from whatever Miles knows about its model."""

import json
from types import SimpleNamespace

import pytest

from miles_periodic.compat.bindings.route_shape import shape_of
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.values import RouteShape


def test_megatrons_arguments_say_it():
    arguments = SimpleNamespace(num_layers=4, moe_router_topk=2, num_experts=16)
    assert shape_of(arguments) == RouteShape(4, 2, 16)


def checkpoint(folder, **config):
    (folder / "config.json").write_text(json.dumps(config))
    return SimpleNamespace(num_layers=4, hf_checkpoint=str(folder))


def test_without_them_the_checkpoint_says_it(tmp_path):
    arguments = checkpoint(tmp_path, model_type="qwen3_moe", num_experts=32, num_experts_per_tok=4)
    assert shape_of(arguments) == RouteShape(4, 4, 32)


def test_a_model_without_experts_is_refused(tmp_path):
    with pytest.raises(PeriodicError, match="does not say how many experts"):
        shape_of(checkpoint(tmp_path, model_type="qwen3"))
