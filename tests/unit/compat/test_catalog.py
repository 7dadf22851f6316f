"""The catalog of bindings: nothing in it is dangling, and each adapter says what it does."""

import importlib

import pytest

from miles_periodic.compat.catalog import ALWAYS, BINDINGS, FEATURE_BINDINGS, bindings_for
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


def test_every_binding_is_needed_by_a_feature():
    needed = {b for slug in SLUGS for upstream in UPSTREAMS for b in bindings_for(slug, upstream)}
    assert needed == set(BINDINGS.values())


def test_what_is_always_bound_comes_with_every_feature_that_binds_on_the_upstream():
    for slug, by_upstream in FEATURE_BINDINGS.items():
        for upstream in by_upstream:
            names = {binding.name for binding in bindings_for(slug, upstream)}
            assert set(ALWAYS.get(upstream, ())) <= names


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
