"""A process's title shows its role."""

import pytest

from miles_periodic.compat.roll_call.roles import ROLES_OF_A_RUN, role_of


@pytest.mark.parametrize(
    ("title", "role"),
    [
        ("miles-router", "router"),
        ("miles-session-server", "session-server"),
        ("ray::RolloutManager.generate", "rollout-manager"),
        ("sglang::scheduler_DP1_TP0", "scheduler"),
    ],
)
def test_a_process_of_a_run_is_known_by_its_title(title, role):
    assert role_of(title) == role
    assert role in ROLES_OF_A_RUN


def test_a_title_that_shows_nothing_is_a_process():
    assert role_of("python train.py") == "process"
