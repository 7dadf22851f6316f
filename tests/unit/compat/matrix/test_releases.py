"""The range as data: what is in it, what may be asked of it, and how it grows."""

import pytest
from packaging.version import Version

from miles_periodic.compat.matrix import releases
from miles_periodic.compat.matrix.releases import known_releases, release_named
from miles_periodic.hooks import PeriodicError


def test_the_range_begins_where_it_was_drawn_and_is_in_order():
    by_distribution = {}
    for release in known_releases():
        by_distribution.setdefault(release.distribution, []).append(release.version)
    assert {name: listed[0] for name, listed in by_distribution.items()} == {
        "sglang": "0.5.6",
        "megatron-core": "0.15.3",
        "miles-rl": "0.0.1",
    }
    for listed in by_distribution.values():
        assert listed == sorted(set(listed), key=Version)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sglang", "'sglang' is not a release"),
        ("sglang=0.5.12", "is not a release"),
        ("sgland==0.5.12", "Write 'sglang' instead of 'sgland'"),
        ("sglang==newest", "'newest' is not a version"),
    ],
)
def test_what_is_no_release_is_refused_by_name(name, words):
    with pytest.raises(PeriodicError) as caught:
        release_named(name)
    assert words in str(caught.value)


def test_a_release_out_of_range_is_offered_to_be_added():
    with pytest.raises(PeriodicError, match=r"miles compat add sglang==0\.4\.1"):
        releases.chosen(["sglang==0.4.1"])


def test_chosen_releases_keep_the_order_of_the_range_and_none_means_all():
    named = releases.chosen(["sglang==0.5.12", "sglang==0.5.9"])
    assert [release.version for release in named] == ["0.5.9", "0.5.12"]
    assert releases.chosen([]) == known_releases()


def test_the_release_before_is_the_newest_older_one_of_the_same_distribution():
    assert releases.before(release_named("sglang==0.5.12")).version == "0.5.11"
    assert releases.before(release_named("sglang==99.0")).distribution == "sglang"
    assert releases.before(release_named("sglang==0.1.0")) is None


def test_a_release_is_written_into_its_place_once(tmp_path, monkeypatch):
    file = tmp_path / "releases.toml"
    file.write_text(
        '[sglang]\nreleases = [\n  "0.5.9",\n  "0.5.12",\n]\n\n[miles-rl]\nreleases = [\n]\n'
    )
    added = release_named("sglang==0.5.10.post1")
    monkeypatch.setattr(releases, "_FILE", file)
    assert releases.add(added) and not releases.add(added)
    assert file.read_text() == (
        '[sglang]\nreleases = [\n  "0.5.9",\n  "0.5.10.post1",\n  "0.5.12",\n]\n\n'
        "[miles-rl]\nreleases = [\n]\n"
    )
