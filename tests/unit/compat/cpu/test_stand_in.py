"""Stand-ins replace names that exist, and say so when one does not."""

from types import ModuleType, SimpleNamespace

import pytest
from miles_periodic.compat.cpu.stand_in import TRAINER_VARIABLE, StandIn, owner_of, replace
from miles_periodic.hooks.errors import PeriodicError


@pytest.fixture
def upstream():
    module = ModuleType("upstream.part")

    class Thing:
        def act(self, times):
            """Act."""
            return ["acted"] * times

    module.Thing = Thing
    return module


def test_the_replacement_gets_the_native_one(upstream):
    replace(upstream, "Thing.act", lambda native: lambda self, times: native(self, times + 1))
    assert upstream.Thing().act(1) == ["acted", "acted"]


def test_the_replacement_keeps_the_name_and_the_docstring(upstream):
    replace(upstream, "Thing.act", lambda native: lambda self, times: [])
    assert (upstream.Thing.act.__name__, upstream.Thing.act.__doc__) == ("act", "Act.")


@pytest.mark.parametrize("target", ["Thing.gone", "Gone.act", "gone"])
def test_a_missing_target_is_named_with_what_to_do(upstream, target):
    with pytest.raises(PeriodicError, match=rf"upstream\.part:{target}") as raised:
        replace(upstream, target, lambda native: native)
    assert "Install the miles-rl release" in str(raised.value)


def test_a_missing_target_is_not_created(upstream):
    with pytest.raises(PeriodicError):
        replace(upstream, "Thing.gone", lambda native: native)
    assert not hasattr(upstream.Thing, "gone")


def test_the_owner_of_a_dotted_name_is_the_object_before_the_last_dot(upstream):
    assert owner_of(upstream, "Thing.act") == (upstream.Thing, "act")


@pytest.mark.parametrize(
    ("process", "environment", "belongs"),
    [
        ("every", {}, True),
        ("every", {TRAINER_VARIABLE: "1"}, True),
        ("trainer", {TRAINER_VARIABLE: "1"}, True),
        ("trainer", {TRAINER_VARIABLE: "0"}, False),
        ("trainer", {}, False),
    ],
)
def test_a_trainers_stand_in_belongs_to_train_actors_only(process, environment, belongs):
    stand_in = StandIn("a/b", "upstream", SimpleNamespace, "because", process)
    assert stand_in.belongs(environment) is belongs
