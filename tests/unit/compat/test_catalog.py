"""The catalog of bindings: nothing in it is dangling, and each adapter says what it does."""

import importlib

import pytest

from miles_periodic.compat import catalog
from miles_periodic.compat.catalog import (
    ALWAYS,
    BINDINGS,
    FEATURE_BINDINGS,
    NOTHING,
    SESSION_BINDINGS,
    SETTING_BINDINGS,
    every_name,
)
from miles_periodic.compat.probes import PROBES
from miles_periodic.compat.roll_call.roles import ROLES_OF_A_RUN
from miles_periodic.hooks.decisions import UPSTREAMS
from miles_periodic.plugins import features

SLUGS = {feature.slug for feature in features()}


def test_every_feature_has_probes_and_bindings_and_nothing_else_has():
    assert set(PROBES) == set(FEATURE_BINDINGS) == SLUGS


@pytest.mark.parametrize("slug", sorted(SLUGS))
def test_a_feature_binds_only_where_a_probe_looks(slug):
    assert set(FEATURE_BINDINGS[slug]) <= set(PROBES[slug]) <= set(UPSTREAMS)


def needs():
    """Every need of a feature or a setting, with the upstream that it is on."""
    for by_upstream in (*FEATURE_BINDINGS.values(), *SESSION_BINDINGS.values()):
        yield from by_upstream.items()
    for by_upstream in SETTING_BINDINGS.values():
        for upstream, by_setting in by_upstream.items():
            for needs in by_setting.values():
                yield upstream, needs
    yield from ALWAYS.items()


def test_every_binding_is_needed_by_a_feature():
    needed = {name for _, names in needs() for name in every_name(names)}
    assert needed == set(BINDINGS)


def test_a_need_names_bindings_on_its_own_upstream():
    for upstream, names in needs():
        assert {BINDINGS[name].upstream for name in every_name(names)} <= {upstream}


def test_a_setting_with_bindings_is_a_setting_of_its_feature():
    models = {feature.slug: feature.settings_model.model_fields for feature in features()}
    for slug, by_upstream in SETTING_BINDINGS.items():
        named = {setting for by_setting in by_upstream.values() for setting in by_setting}
        assert named <= set(models[slug])


class Places:
    """A tree that has some targets."""

    def __init__(self, *names):
        self.targets = {BINDINGS[name].target for name in names}

    def find(self, target):
        return target if target in self.targets else None


@pytest.fixture
def alternatives(monkeypatch):
    def state(*names):
        needs = {"some-feature": {"sglang": (names,)}}
        monkeypatch.setattr(catalog, "FEATURE_BINDINGS", needs)

    return state


def chosen(tree):
    return catalog.binding_names("some-feature", "sglang", tree)


def test_of_alternatives_the_first_that_the_tree_has_is_put_in(alternatives):
    alternatives("server/carry-start", "server/remember-start")
    assert chosen(Places("server/remember-start")) == ("server/remember-start",)
    both = Places("server/remember-start", "server/carry-start")
    assert chosen(both) == ("server/carry-start",)


def test_where_a_tree_has_no_alternative_the_last_is_named_as_missing(alternatives):
    alternatives("server/carry-start", "server/remember-start")
    assert chosen(Places()) == ("server/remember-start",)


def test_alternatives_may_end_in_nothing(alternatives):
    alternatives("server/carry-start", NOTHING)
    assert chosen(Places()) == ()


def test_what_is_always_bound_comes_with_every_feature_that_binds_on_the_upstream():
    everywhere = Places(*BINDINGS)
    for slug, by_upstream in FEATURE_BINDINGS.items():
        for upstream in by_upstream:
            names = set(catalog.binding_names(slug, upstream, everywhere))
            assert set(every_name(ALWAYS.get(upstream, ()))) <= names


def test_a_hook_that_takes_two_upstreams_has_bindings_on_each_and_each_tree_its_own():
    assert set(catalog.upstream_bindings("token_log_probs")) == {"megatron", "miles"}
    tree = Places("loss/output", "loss/main-log-probs", "launch/muster")
    tree.upstream = "megatron"
    assert catalog.names_for_hooks(["token_log_probs"], tree) == ("loss/output",)
    tree.upstream = "miles"
    names = catalog.names_for_hooks(["token_log_probs"], tree)
    assert names == ("loss/main-log-probs", "launch/muster")


@pytest.mark.parametrize("binding", BINDINGS.values(), ids=lambda binding: binding.name)
def test_a_binding_names_an_upstream_a_target_in_it_and_roles_of_a_run(binding):
    assert all(target.startswith(f"{binding.upstream}.") for target in binding.targets)
    assert set(binding.processes) <= set(ROLES_OF_A_RUN)


@pytest.mark.parametrize("binding", BINDINGS.values(), ids=lambda binding: binding.name)
def test_an_adapter_explains_itself_in_five_parts(binding):
    module, _, name = binding.adapter.partition(":")
    docstring = " ".join(getattr(importlib.import_module(module), name).__doc__.split())
    parts = ("Symptom: ", "Trigger: ", "Takes down: ", "Safe because ", "Upstream: ")
    places = [docstring.find(part) for part in parts]
    assert -1 not in places and places == sorted(places)
