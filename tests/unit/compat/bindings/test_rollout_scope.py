"""Which of a run's models a rollout's request goes to."""

import asyncio
from types import SimpleNamespace

import pytest

from miles_periodic.compat.bindings import rollout_request, rollout_scope, rollout_traffic
from miles_periodic.compat.bindings.rollout_flight import flying
from miles_periodic.hooks.values import RolloutState

ROUTERS = {"actor": ("10.0.0.1", 1), "ref": ("10.0.0.1", 2)}
REFERENCE, ACTOR = "http://10.0.0.1:2/generate", "http://10.0.0.1:1/generate"


def model(name, update_weights=None, model_path=None, in_group=None):
    groups = [SimpleNamespace(overrides={"model_path": in_group} if in_group else {})]
    return SimpleNamespace(
        name=name, update_weights=update_weights, model_path=model_path, server_groups=groups
    )


@pytest.fixture
def run(stub, monkeypatch):
    """A run of an actor and another model, from within a rollout."""
    rollout_scope._frozen_models.cache_clear()

    def made(other):
        config = SimpleNamespace(models=[model("actor"), other])
        stub(
            "miles.backends.sglang_utils.sglang_config",
            SglangConfig=SimpleNamespace(from_yaml=lambda file: config),
        )
        arguments = SimpleNamespace(
            sglang_model_routers=ROUTERS, sglang_config="servers.yaml", hf_checkpoint="/actor"
        )
        monkeypatch.setattr(rollout_scope, "current_arguments", lambda: arguments)

    yield made
    rollout_scope._frozen_models.cache_clear()


@pytest.mark.parametrize(
    ("other", "is_frozen"),
    [
        (model("ref", update_weights=False), True),
        (model("ref", model_path="/other"), True),
        (model("ref", in_group="/other"), True),
        (model("ref", model_path="/actor"), False),
        (model("ref", update_weights=True, model_path="/other"), False),
    ],
)
def test_a_model_is_frozen_where_miles_gives_it_no_weights(run, other, is_frozen):
    run(other)
    assert rollout_scope.asks_frozen_model(REFERENCE) is is_frozen
    assert not rollout_scope.asks_frozen_model(ACTOR)


@pytest.mark.parametrize("adapter", [rollout_request.add_fields, rollout_traffic.watch])
def test_a_request_to_a_frozen_model_says_nothing_of_the_rollouts_weights(
    run, monkeypatch, adapter
):
    run(model("ref", update_weights=False))
    state, posted = RolloutState(), []
    for module in (rollout_request, rollout_traffic):
        monkeypatch.setattr(module, "current_rollout", lambda: state)

    async def post(url, payload, max_retries=60, action="post", headers=None):
        posted.append((url, payload))
        return {"meta_info": {"weight_version": "default"}}

    async def rollout():
        with flying(SimpleNamespace(metadata={}, response_length=0)) as flight:
            await adapter(post, None, (REFERENCE, {"input_ids": [1]}), {})
            return flight.state

    assert asyncio.run(rollout()) is None
    assert posted == [(REFERENCE, {"input_ids": [1]})] and not state.has_started
