from __future__ import annotations

import pytest
from pydantic import ValidationError

from miles_periodic.plugins.cost_aware_packing.settings import CostAwarePackingSettings


def test_every_setting_is_documented():
    fields = CostAwarePackingSettings.model_fields
    assert all(field.description for field in fields.values())


def test_settings_are_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        CostAwarePackingSettings().seed = 1


@pytest.mark.parametrize(
    "values", [{"time_budget_seconds": -1}, {"time_budget_seconds": float("nan")}, {"seeed": 1}]
)
def test_wrong_settings_are_refused(values):
    with pytest.raises(ValidationError):
        CostAwarePackingSettings(**values)
