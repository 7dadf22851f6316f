"""Contributions as data: tied to the ledger and to a feature, whole, and in order."""

import ast

import pytest

from miles_periodic.plugins import features
from miles_periodic.upstream.contributions import contribution_at, contributions
from miles_periodic.upstream.rows import REPOSITORIES

ALL = contributions()
MINIMAL = """
title = "T"
branch = "b"
row = "miles#575"
motivation = "m"
design = "d"
compatibility = "c"
[[step]]
subject = "s"
body = ""
"""


def test_what_can_be_sent_is_this():
    assert sorted(ALL) == [
        ("cost-aware-packing", "megatron"),
        ("cost-aware-packing", "miles"),
        ("delta-router-replay", "miles"),
        ("delta-router-replay", "sglang"),
        ("delta-router-replay.sessions", "miles"),
        ("kv-preservation", "miles"),
    ]


@pytest.mark.parametrize("key", ALL, ids="-".join)
def test_a_contribution_is_of_a_feature_and_its_row_of_its_upstream(key):
    change = ALL[key]
    assert change.feature in [feature.slug for feature in features()]
    assert change.change.upstream == key[1] in REPOSITORIES
    assert change.change.probe is not None, "nothing would find it upstream"
    assert not change.change.applied_upstream


@pytest.mark.parametrize("key", ALL, ids="-".join)
def test_a_contribution_brings_tests_and_every_file_it_names(key):
    change = ALL[key]
    added = {path for step in change.steps for path in step.adds}
    files = {
        str(path.relative_to(change.folder / "files"))
        for path in (change.folder / "files").rglob("*.txt")
    }
    assert {f"{path}.txt" for path in added} == files
    assert change.tests
    for path in added:
        ast.parse(change.text(path))


@pytest.mark.parametrize("key", ALL, ids="-".join)
def test_subjects_are_short_and_imperative_and_bodies_wrapped(key):
    for step in ALL[key].steps:
        assert len(step.subject) <= 72 and not step.subject.endswith(".")
        assert all(len(line) <= 76 for line in step.body.splitlines())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("miles#575", "miles#0"), "the ledger has no row miles#0"),
        (('title = "T"', 'tittle = "T"'), "tittle"),
        (('body = ""', 'body = ""\n[[step.edit]]\nfile="f"\ndo="guess"\ncode=""'), "guess"),
        (('[[step]]\nsubject = "s"\nbody = ""', ""), "step"),
    ],
    ids=["row", "key", "edit", "no steps"],
)
def test_a_file_that_is_wrong_is_named_with_what_is_wrong(tmp_path, change, said):
    path = tmp_path / "miles" / "packing" / "contribution.toml"
    path.parent.mkdir(parents=True)
    path.write_text(MINIMAL.replace(*change))
    with pytest.raises(ValueError, match=said) as error:
        contribution_at(path)
    assert str(path) in str(error.value)
