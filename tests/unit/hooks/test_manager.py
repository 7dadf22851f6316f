"""The manager of one process: exclusive decisions, hooks as specified, plugins that do not load."""

from importlib.metadata import EntryPoint

import pytest

from miles_periodic.hooks import Feature, PeriodicError, hookimpl, manager
from miles_periodic.hooks.manager import build_manager, installed_plugins, load_plugin


class Splits(Feature):
    slug = "splits"

    @hookimpl
    def split_train_batch(self, batch):
        return None


class SplitsToo(Splits):
    slug = "splits-too"


class Unmarked(Feature):
    slug = "unmarked"

    def split_train_batch(self, batch):
        return None


class WrongArguments(Feature):
    slug = "wrong-arguments"

    @hookimpl
    def split_train_batch(self, batch, colour):
        return None


class UnknownHook(Feature):
    slug = "unknown-hook"

    @hookimpl
    def split_train_bach(self, batch):
        return None


def test_a_feature_is_registered_under_its_slug():
    assert build_manager([Splits()]).has_plugin("splits")


def test_two_managers_share_nothing():
    build_manager([Splits()])
    assert not build_manager([]).has_plugin("splits")


def test_two_features_that_replace_one_decision_are_both_named():
    with pytest.raises(PeriodicError) as error:
        build_manager([Splits(), SplitsToo()])
    assert error.value.problem.startswith("splits and splits-too both replace")
    assert error.value.parts["remedy"] == "Take one of them out: -splits or -splits-too."


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        (Unmarked, "Mark Unmarked.split_train_batch with @hookimpl"),
        (WrongArguments, "take it out: -wrong-arguments"),
        (UnknownHook, "take it out: -unknown-hook"),
    ],
)
def test_a_hook_that_would_not_be_called_as_meant_is_refused(kind, remedy):
    with pytest.raises(PeriodicError) as error:
        build_manager([kind()])
    assert remedy in error.value.parts["remedy"]


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def made(name, text):
        (tmp_path / f"{name}_plugin.py").write_text(text)
        return EntryPoint(name, f"{name}_plugin:features", "miles_periodic.features")

    return made


FEATURE = (
    "from miles_periodic.hooks import Feature\n"
    "def features():\n    return [One]\n"
    "class One(Feature):\n"
)
BROKEN = {
    "raises": "raise RuntimeError('no luck')",
    "exits": "raise SystemExit(1)",
    "syntax": "def features(:",
    "lacks": "",
    "number": "features = lambda: 3",
    "stranger": "features = lambda: [int]",
    "raises-oddly": "raise type('Skipped', (BaseException,), {})('not here')",
    "nameless": FEATURE + "    pass",
    "numbered": FEATURE + "    slug = 3",
    "shouting": FEATURE + "    slug = 'One, Two'",
    "twice": FEATURE + "    slug = 'one'\nfeatures = lambda: [One, One]",
    "settings": FEATURE + "    slug = 'one'\n    settings_model = dict",
    "one-name": FEATURE + "    slug = 'one'\n    conflicts = 'two'",
}


@pytest.mark.parametrize(("name", "text"), BROKEN.items())
def test_a_plugin_that_does_not_load_is_named(plugin, name, text):
    with pytest.raises(PeriodicError) as error:
        load_plugin(plugin(name, text))
    assert f"The plugin {name!r}" in error.value.problem
    assert f"--allow-missing {name}" in error.value.parts["remedy"]


def test_a_broken_plugin_may_be_missing_and_the_rest_works(plugin, monkeypatch):
    good = plugin(
        "good",
        "from miles_periodic.hooks import Feature\n"
        "class One(Feature):\n    slug = 'one'\n"
        "def features():\n    return [One]\n",
    )
    bad = plugin("bad", BROKEN["raises"])
    monkeypatch.setattr(manager, "entry_points", lambda group: [good, bad])
    skipped = []
    found = installed_plugins(allow_missing=["bad"], skipped=skipped.append)
    assert [f.slug for f in found["good"]] == ["one"]
    assert (found["bad"], len(skipped)) == ((), 1)


def test_a_plugin_that_is_not_named_is_never_imported(plugin, monkeypatch):
    bad = plugin("bad", BROKEN["raises"])
    monkeypatch.setattr(manager, "entry_points", lambda group: [bad])
    assert installed_plugins(names=[]) == {"bad": ()}


def test_two_packages_with_one_plugin_name_are_an_error(plugin, monkeypatch):
    good = plugin("good", "features = lambda: []")
    monkeypatch.setattr(manager, "entry_points", lambda group: [good, good])
    with pytest.raises(PeriodicError, match="Two installed packages bring a plugin 'good'"):
        installed_plugins()
