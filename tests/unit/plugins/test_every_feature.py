"""What holds for every feature: the same files, four headings, and a ledger that agrees."""

import re
from pathlib import Path

import pytest

from miles_periodic.plugins import features
from miles_periodic.upstream.ledger import ledger

ROOT = Path(__file__).parents[3]
FEATURES = features()


def folder(feature):
    return ROOT / "plugins" / feature.slug.replace("-", "_")


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_folder_has_the_same_files(feature):
    names = {path.name for path in folder(feature).iterdir()}
    assert {"__init__.py", "README.md", "feature.py", "settings.py"} <= names


@pytest.mark.parametrize("feature", FEATURES)
def test_a_features_page_has_the_four_headings(feature):
    page = (folder(feature) / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == ["Why", "How", "PR", "Exit"]


@pytest.mark.parametrize("feature", FEATURES)
def test_a_features_page_explains_every_setting(feature):
    page = (folder(feature) / "README.md").read_text(encoding="utf-8")
    for name in feature.settings_model.model_fields:
        assert f"`{name}`" in page


@pytest.mark.parametrize("feature", FEATURES)
def test_every_setting_has_its_doc_under_the_field(feature):
    for name, field in feature.settings_model.model_fields.items():
        assert field.description, name


@pytest.mark.parametrize("feature", FEATURES)
def test_a_features_page_names_its_pull_requests(feature):
    page = (folder(feature) / "README.md").read_text(encoding="utf-8")
    assert set(feature.pull_requests) == set(re.findall(r"\b(?:sglang|miles|megatron)#\d+", page))


def test_every_pull_request_that_a_feature_names_is_in_the_ledger_and_the_other_way_round():
    named = {key for feature in FEATURES for key in feature.pull_requests}
    assert named == set(ledger())


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_says_why_and_when_it_may_go(feature):
    assert feature.why.endswith(".") and feature.exit.endswith(".")
