"""A rollout's requests as they leave and come back."""

from miles_periodic.compat.catalog import BINDINGS, FEATURE_BINDINGS, every_name


def test_traffic_is_watched_from_outside_of_what_features_add_to_a_request():
    """A resumed rollout's start must be known before a feature asks the server for one."""
    for names in (list(BINDINGS), list(every_name(FEATURE_BINDINGS["kv-preservation"]["miles"]))):
        assert names.index("rollout/request") < names.index("rollout/traffic")
