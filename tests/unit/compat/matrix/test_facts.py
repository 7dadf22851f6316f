"""Facts: written, read back, and compared in words."""

import json
from dataclasses import replace

import pytest

from miles_periodic.compat.matrix import facts as facts_module
from miles_periodic.compat.matrix.facts import Fact, Facts, differences, facts_of, record, recorded
from miles_periodic.hooks.conditions import condition_from
from miles_periodic.plugins import features

NATIVE = Fact("native", "has it")
INJECT = Fact("inject", "lacks it", ("server/one",))


def facts(fact=NATIVE, **claims):
    return Facts("sglang-90.1", {"sglang": {"some-feature": fact}}, claims)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(facts_module, "_folder", lambda: tmp_path / "facts")


def test_what_was_recorded_is_read_back():
    alike = {"server/one": ("sglang-90.0", "sglang-90.1")}
    before = replace(facts(INJECT, one=True, two=False), alike=alike)
    path = record(before)
    assert recorded("sglang-90.1") == before
    assert json.loads(path.read_text())["label"] == "sglang-90.1"


def test_a_release_without_a_file_has_no_facts():
    assert recorded("sglang-90.2") is None


def test_facts_that_agree_differ_in_nothing():
    assert list(differences(facts(INJECT, one=True), facts(INJECT, one=True))) == []


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (None, facts(), "sglang-90.1 is not on file"),
        (facts(), facts(INJECT), "was native (has it), is inject (lacks it)"),
        (
            facts(INJECT),
            facts(Fact("inject", "lacks it", ("server/two",))),
            "bound server/one; binds",
        ),
        (facts(), facts(Fact("native", "has all")), "was 'has it', is 'has all'"),
        (
            Facts("sglang-90.1", {}, {}, {"server/one": ("sglang-90.0",)}),
            Facts("sglang-90.1", {}, {}),
            "the targets of server/one were as in sglang-90.0, are as in no recorded tree",
        ),
        (facts(one=True), facts(one=False), "one was there, is not there"),
        (facts(), facts(one=True), "one was not looked for, is there"),
        (Facts("sglang-90.1", {}, {}), facts(), "some-feature on sglang: is new"),
        (facts(), Facts("sglang-90.1", {"sglang": {}}, {}), "some-feature on sglang: is gone"),
    ],
)
def test_each_difference_is_one_line_in_words(before, now, said):
    (line,) = differences(before, now)
    assert said in line


def test_a_tree_is_planned_and_every_claim_about_its_upstream_judged(made_tree):
    tree = made_tree()
    claims = {
        "sglang#1": ("sglang", condition_from({"defines": "sglang.srt.managers.collector"})),
        "sglang#2": ("sglang", condition_from({"defines": "sglang.srt.gone"})),
        "miles#3": ("miles", condition_from({"defines": "miles.gone"})),
    }
    found = facts_of("here", {"sglang": tree}, features(), (), claims)
    assert found.claims == {"sglang#1": True, "sglang#2": False}
    assert set(found.decisions) == {"sglang"}
    assert {f.decision for f in found.decisions["sglang"].values()} == {"unsupported"}
