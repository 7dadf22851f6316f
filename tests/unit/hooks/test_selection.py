"""`--plugins` text to features; every wrong name is an error that says what to write."""

import pytest

from miles_periodic.hooks import Feature, PeriodicError
from miles_periodic.hooks.selection import PluginChoice, choose, parse


def feature(slug, **stated):
    return type(slug.title().replace("-", ""), (Feature,), {"slug": slug, **stated})


REPLAY = feature("delta-router-replay")
SALT = feature("kv-preservation")
RARE = feature("rare", default=False)
AVAILABLE = {"periodic": (REPLAY, SALT, RARE), "acme": (feature("sparkle"),)}


def chosen(text, available=AVAILABLE):
    return [f.slug for f in choose(parse(text, available), available)]


@pytest.mark.parametrize(
    ("text", "slugs"),
    [
        ("periodic", ["delta-router-replay", "kv-preservation"]),
        ("periodic:rare", ["rare"]),
        ("periodic:rare,delta-router-replay", ["delta-router-replay", "rare"]),
        ("periodic:-kv-preservation", ["delta-router-replay"]),
        ("periodic:-kv-preservation,-delta-router-replay", []),
        ("periodic:rare,acme", ["rare", "sparkle"]),
        ("periodic,acme:-sparkle", ["delta-router-replay", "kv-preservation"]),
        (" periodic : rare , kv-preservation ", ["kv-preservation", "rare"]),
        ("periodic:rare,rare", ["rare"]),
    ],
)
def test_a_text_selects(text, slugs):
    assert chosen(text) == slugs


def test_a_name_after_a_comma_is_a_feature_until_it_is_a_plugin():
    assert parse("periodic:a,acme", ("acme",)) == (
        PluginChoice("periodic", only=("a",)),
        PluginChoice("acme"),
    )


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("periodc", "Write 'periodic' instead of 'periodc'."),
        ("rare", "It is a feature: write periodic:rare, and other features after a comma."),
        ("periodic,rare", "It is a feature: write periodic:rare"),
        ("periodic:delta-router-reply", "Write 'delta-router-replay' instead"),
        ("periodic:-kv-preservaton", "Write 'kv-preservation' instead"),
        ("periodic:", "Write features after the colon"),
        ("periodic:rare,", "Write features after the colon"),
        ("periodic:-", "Write features after the colon"),
        ("", "Write --plugins periodic"),
        (",periodic", "Write --plugins periodic"),
        ("periodic,periodic", "Write its features in one list"),
        ("periodic:rare,-rare", "Write rare or -rare, not both."),
        ("zzzz", "Choose one of: acme, periodic."),
    ],
)
def test_a_wrong_text_says_what_to_write(text, remedy):
    with pytest.raises(PeriodicError) as error:
        chosen(text)
    assert remedy in error.value.parts["remedy"]
    assert error.value.status == 2


def test_features_that_exclude_each_other_are_both_named():
    one = feature("one", conflicts=("two",))
    with pytest.raises(PeriodicError, match="one and two cannot be on together"):
        chosen("p", {"p": (one, feature("two"))})


def test_a_requirement_that_is_off_is_named():
    one = feature("one", requires=("two",))
    with pytest.raises(PeriodicError, match="Add two, or take one out"):
        chosen("p:one", {"p": (one, feature("two"))})


def test_two_plugins_with_one_slug_are_both_named():
    with pytest.raises(PeriodicError, match="both bring a feature same"):
        chosen("p,q", {"p": (feature("same"),), "q": (feature("same"),)})
