"""What holds for every feature: the same files, four headings, and a ledger that agrees."""

import importlib
import re
from pathlib import Path

import pytest

from miles_periodic.compat.catalog import BINDINGS
from miles_periodic.plugins import features
from miles_periodic.upstream.rows import REPOSITORIES, ledger

ROOT = Path(__file__).parents[3]
FEATURES = features()
OF_REPOSITORY = {repository: upstream for upstream, repository in REPOSITORIES.items()}


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


@pytest.mark.parametrize("feature", FEATURES)
def test_a_pull_request_that_a_feature_names_is_a_row_of_the_ledger(feature):
    assert [key for key in feature.pull_requests if key not in ledger()] == []


def test_every_row_with_a_number_is_named_by_a_feature_and_every_other_by_a_binding():
    named = {key for feature in FEATURES for key in feature.pull_requests}
    for row in ledger().values():
        assert row.key in named if row.number else row.every_binding, row.key


@pytest.mark.parametrize("name", BINDINGS)
def test_every_binding_stands_in_a_row_of_the_ledger(name):
    assert [row.key for row in ledger().values() if name in row.every_binding]


def named_by(adapter):
    """Keys of our upstreams in the last part of an adapter's docstring."""
    module, _, name = adapter.partition(":")
    docstring = getattr(importlib.import_module(module), name).__doc__
    upstream = None
    for repository, number in re.findall(
        r"([\w-]+/[\w-]+)?#(\d+)", docstring.split("Upstream:")[1]
    ):
        upstream = OF_REPOSITORY.get(repository) if repository else upstream
        if upstream:
            yield f"{upstream}#{number}"


@pytest.mark.parametrize("binding", BINDINGS.values(), ids=lambda binding: binding.name)
def test_a_change_that_an_adapter_names_is_a_row_that_names_its_binding(binding):
    for key in named_by(binding.adapter):
        assert binding.name in ledger()[key].every_binding, key


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_says_why_and_when_it_may_go(feature):
    assert feature.why.endswith(".") and feature.exit.endswith(".")
