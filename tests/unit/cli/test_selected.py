"""Which features a run has nothing to do for, by the roles of its servers."""

import pytest

from miles_periodic.cli.options import Selection
from miles_periodic.cli.selected import select_features

REGULAR, PAIR = ("regular",), ("prefill", "decode")


@pytest.mark.parametrize(
    ("plugins", "roles", "idle"),
    [
        ("periodic", REGULAR, {"decode-radix-cache": "no decode servers"}),
        ("periodic", PAIR, {}),
        ("periodic:decode-radix-cache", REGULAR, {}),
        ("periodic:-decode-radix-cache", REGULAR, {}),
    ],
)
def test_a_feature_for_decode_servers_is_idle_without_them_unless_it_was_named(
    plugins, roles, idle
):
    assert select_features(Selection(plugins=plugins)).idle(roles) == idle
