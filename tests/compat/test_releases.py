"""Every release in releases.toml gets the decision and the evidence that stand there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from miles_periodic.compat import fingerprints
from miles_periodic.compat.catalog import targets_of
from miles_periodic.compat.plan import make_plan
from miles_periodic.compat.probes import PROBES
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.decisions import word
from miles_periodic.plugins import features
from miles_periodic.upstream.rows import replacements

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RECIPES = tomllib.loads(Path(__file__).with_name("releases.toml").read_text())["release"]
CASES = [
    pytest.param(recipe, slug, id=f"{recipe['distribution']}-{recipe['version']}-{upstream}-{slug}")
    for recipe in RECIPES
    for upstream in [recipe["upstream"]]
    for slug, probes in PROBES.items()
    if upstream in probes
]
WHEEL = ("miles-rl", "0.0.2", "3.11")


@pytest.fixture
def planned(unpacked):
    def plan(recipe, slug):
        folder = unpacked(recipe["distribution"], recipe["version"], recipe["python"])
        trees = {recipe["upstream"]: Tree.at(recipe["upstream"], folder)}
        plan = make_plan(features(), [slug], trees, environment={}, replacements=replacements())
        rows = plan.rows_of(slug)
        return next(row.decision for row in rows if row.upstream == recipe["upstream"]), folder

    return plan


@pytest.mark.parametrize(("recipe", "slug"), CASES)
def test_a_release_gets_its_decision_with_evidence(planned, recipe, slug):
    decision, folder = planned(recipe, slug)
    expected = recipe[slug]
    assert word(decision) == expected["decision"], decision.reason
    remaining = iter(decision.evidence)
    for path, words in expected["evidence"]:
        found = any(e.path.endswith(path) and words in e.what for e in remaining)
        assert found, f"{path}: {words} is not in order in:\n" + "\n".join(
            map(str, decision.evidence)
        )
    for evidence in decision.evidence:
        lines = (folder / evidence.path).read_text(encoding="utf-8").splitlines()
        assert 0 < evidence.line <= len(lines)


def test_every_target_that_the_wheel_has_is_of_a_known_shape(unpacked):
    tree = Tree.at("miles", unpacked(*WHEEL))
    for target in targets_of("miles"):
        shape = fingerprints.of_target(tree, target)
        if shape is None:  # A binding of another tree's.
            continue
        known = [k.fingerprint for k in fingerprints.known_shapes().get(target, ())]
        assert shape in (None, *known), f"{target}: record it with compat.fingerprints write"


@pytest.fixture
def plan_of_the_wheel(unpacked):
    folder = unpacked(*WHEEL)
    trees = {u: Tree.at(u, folder) for u in ("sglang", "megatron", "miles")}

    def plan(**options):
        on = [feature.slug for feature in features()]
        return make_plan(
            features(), on, trees, environment={}, replacements=replacements(), **options
        )

    return plan


def test_the_wheel_supports_every_feature_of_a_run_without_decode_servers(plan_of_the_wheel):
    plan = plan_of_the_wheel(idle={"decode-radix-cache": "no decode servers"})
    assert plan.problems() == []
    assert not any("no session server" in row.decision.reason for row in plan.rows)
    assert plan.off("decode-radix-cache").startswith("no decode servers; besides, ")


def test_the_wheel_has_no_decode_cache_and_the_first_release_that_has_it_is_named(
    plan_of_the_wheel,
):
    (problem,) = plan_of_the_wheel().problems()
    assert problem.parts["feature"] == "decode-radix-cache"
    assert "0.5.11 is the first release that has it" in problem.parts["remedy"]
