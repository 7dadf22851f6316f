"""Headers tie each patch set to the ledger, the catalog and the releases, both ways."""

import pytest

from miles_periodic.compat.catalog import every_binding
from miles_periodic.compat.matrix.facts import recorded
from miles_periodic.compat.matrix.releases import known_releases
from miles_periodic.compat.probes import PROBES
from miles_periodic.patches.headers import header_from, headers
from miles_periodic.plugins import features
from miles_periodic.upstream.rows import ledger

PATCHING = [header for header in headers() if not header.nothing]
GOOD = {"what": "a", "why": "b", "applies-to": ["miles-rl==0.0.2"], "exit": "c"}


def test_every_feature_has_a_header_for_every_upstream_that_it_touches():
    touched = {(upstream, slug) for slug, probes in PROBES.items() for upstream in probes}
    assert {(header.upstream, header.feature) for header in headers()} == touched


def test_a_header_says_why_there_is_nothing_exactly_where_nothing_is_bound():
    for header in headers():
        assert bool(header.nothing) != bool(every_binding(header.feature, header.upstream)), header


@pytest.mark.parametrize("header", PATCHING, ids=lambda header: header.name)
def test_a_header_names_the_rows_of_the_ledger_that_its_bindings_are_named_in(header):
    bound = set(every_binding(header.feature, header.upstream))
    rows = [row.key for row in ledger().values() if bound & set(row.every_binding)]
    assert sorted(header.pull_requests) == sorted(rows)


@pytest.mark.parametrize("header", PATCHING, ids=lambda header: header.name)
def test_a_header_claims_the_releases_in_which_the_matrix_injects(header):
    injected = [
        release.name
        for release in known_releases()
        if (facts := recorded(release.label)) is not None
        and (by_slug := facts.decisions.get(header.upstream))
        and by_slug[header.feature].decision == "inject"
    ]
    assert [each for each in header.applies_to if "==" in each] == injected


@pytest.mark.parametrize("header", PATCHING, ids=lambda header: header.name)
def test_a_patch_set_can_go_when_its_feature_can(header):
    (feature,) = [f for f in features() if f.slug == header.feature]
    assert header.exit == feature.exit


def test_a_header_reads_as_its_file():
    header = header_from("miles", "packing", GOOD | {"pull-requests": ["miles#1"]})
    assert (header.name, header.pull_requests) == ("miles/packing", ("miles#1",))
    assert header_from("miles", "packing", {"nothing": "native"}).nothing == "native"


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ({key: value for key, value in GOOD.items() if key != "exit"}, "missing: exit"),
        (GOOD | {"exits": "c"}, "unknown: exits"),
        (GOOD | {"nothing": "native"}, "beside nothing: applies_to, exit, what, why"),
    ],
)
def test_a_header_that_lacks_or_invents_a_field_is_named(part, problem):
    with pytest.raises(ValueError, match=f"miles/packing/header.toml.*{problem}"):
        header_from("miles", "packing", part)
