"""The facts on file are what the sources say, and the ledger's claims agree with them."""

from __future__ import annotations

import pytest

from miles_periodic.cli.compat.gather import facts_in
from miles_periodic.cli.upstream.verify import seen_on_file
from miles_periodic.compat.matrix.facts import differences, recorded
from miles_periodic.compat.matrix.releases import known_releases, release_named
from miles_periodic.upstream.claims import disagreements
from miles_periodic.upstream.rows import ledger

#: What CI reads anew; `miles compat matrix --check` reads every release.
READ = ("sglang==0.5.11", "megatron-core==0.19.2", "miles-rl==0.0.2")


@pytest.mark.parametrize("name", READ)
def test_a_release_says_what_is_on_file(unpacked, name):
    release = release_named(name)
    folder = unpacked(release.distribution, release.version, release.python)
    found = facts_in(release, folder)
    assert list(differences(recorded(release.label), found)) == [], "miles compat matrix --write"


@pytest.mark.parametrize("release", known_releases(), ids=lambda release: release.label)
def test_every_release_in_range_is_on_file(release):
    facts = recorded(release.label)
    assert facts is not None and set(facts.decisions) == set(release.upstreams)


@pytest.mark.parametrize("row", ledger().values(), ids=lambda row: row.key)
def test_a_change_is_in_the_release_that_the_ledger_claims_and_not_in_the_one_before(row):
    assert list(disagreements(row, seen_on_file(row))) == []
