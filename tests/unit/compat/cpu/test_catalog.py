"""The catalog of stand-ins is complete and says why each is there."""

from types import ModuleType

import pytest
from miles_periodic.compat.cpu.catalog import STAND_INS
from miles_periodic.compat.cpu.stand_in import StandIn
from miles_periodic.hooks.errors import PeriodicError

#: The name these bind is missing upstream, which is the fault that they mend.
MEND_AN_ABSENCE = {"local-spec/router-product"}


def test_names_are_unique():
    assert len({stand_in.name for stand_in in STAND_INS}) == len(STAND_INS)


@pytest.mark.parametrize("stand_in", STAND_INS, ids=lambda stand_in: stand_in.name)
def test_a_stand_in_says_what_fails_what_triggers_it_and_why_it_is_safe(stand_in: StandIn):
    explanation = stand_in.apply.__doc__ or ""
    assert "Trigger:" in explanation.replace("\n", " ")
    assert stand_in.why.endswith(".")


@pytest.mark.parametrize(
    "stand_in",
    [stand_in for stand_in in STAND_INS if stand_in.name not in MEND_AN_ABSENCE],
    ids=lambda stand_in: stand_in.name,
)
def test_a_stand_in_refuses_a_module_without_its_target(stand_in: StandIn):
    with pytest.raises(PeriodicError, match="nothing to stand in for"):
        stand_in.apply(ModuleType(stand_in.module))
