"""What a rehearsal asks of its runs."""

from miles_periodic.cli.rehearsal.command import _exports
from miles_periodic.cli.selected import Selected
from miles_periodic.plugins import features


def test_only_a_run_with_a_feature_that_makes_exports_exports():
    selected = Selected(tuple(features()), {}, ())
    assert _exports(selected)
    assert not _exports(selected.none())
    others = tuple(f for f in selected.features if f.slug != "fast-resharding")
    assert not _exports(Selected(others, {}, ()))
