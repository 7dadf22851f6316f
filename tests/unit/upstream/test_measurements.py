"""Numbers for a pull request: a section of the page, or a result as a table."""

import json

import pytest

from miles_periodic.upstream.contributions import contributions
from miles_periodic.upstream.measurements import measured, page

PAGE = "# Benchmarks\n\n## One\n\n`command`\n\n| a |\n|---|\n| 1 |\n\n## Two\n\ntext\n"


def test_a_section_comes_with_the_command_that_measured_it(tmp_path):
    (tmp_path / "page.md").write_text(PAGE)
    assert measured(tmp_path / "page.md", ["One"]) == "`command`\n\n| a |\n|---|\n| 1 |"


def test_a_heading_that_the_page_has_not_is_named(tmp_path):
    (tmp_path / "page.md").write_text(PAGE)
    with pytest.raises(ValueError, match="no section Three"):
        measured(tmp_path / "page.md", ["One", "Three"])


def test_a_result_becomes_a_table(tmp_path):
    rows = [{"trace": "zipf", "orders": {"main": {"ratio": 1.23456}}}, {"trace": "x", "n": 2}]
    (tmp_path / "result.json").write_text(json.dumps(rows))
    assert measured(tmp_path / "result.json", []).splitlines() == [
        "| trace | orders main ratio | n |",
        "| --- | --- | --- |",
        "| zipf | 1.235 | – |",
        "| x | – | 2 |",
    ]


def test_a_result_that_is_no_list_of_rows_is_refused(tmp_path):
    (tmp_path / "result.json").write_text("[1, 2]")
    with pytest.raises(ValueError, match="no list of rows"):
        measured(tmp_path / "result.json", [])


@pytest.mark.parametrize("key", contributions(), ids="-".join)
def test_the_page_has_the_numbers_that_a_contribution_names(key):
    measured(page(), contributions()[key].measured)
