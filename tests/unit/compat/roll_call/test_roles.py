"""A process's role is what its title shows."""

import pytest

from miles_periodic.compat.roll_call.roles import role_of


@pytest.mark.parametrize(
    ("title", "role"),
    [
        ("miles-session-server", "session-server"),
        ("ray::RolloutManager", "rollout-manager"),
        ("sglang::scheduler_TP0", "scheduler"),
        ("python train.py", "process"),
        ("tail -f logs/miles-session-server.log", "process"),
        ("bash -c grep -r sglang::scheduler . | head", "process"),
        ("watch pgrep -af ray::RolloutManager", "process"),
    ],
)
def test_a_title_shows_the_role(title, role):
    assert role_of(title) == role
