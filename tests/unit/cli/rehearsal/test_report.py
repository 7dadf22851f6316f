"""The report is one safe, whole and self-contained file, whatever the result holds."""

from __future__ import annotations

import copy
import json
import os
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from miles_periodic.cli.rehearsal.report import render_report, write_report
from miles_periodic.cli.rehearsal.result import read_result
from miles_periodic.hooks import PeriodicError

HOSTILE = "\"'><script>alert(1)</script><img src=https://evil.example/x onerror=a()>&lt;${x}\x1b[2J"

EXAMPLE = runpy.run_path(str(Path(__file__).with_name("example_result.py")))["passed_result"]()


def page_of(result: dict[str, Any]) -> str:
    return render_report(read_result(result))


def made_hostile(value: Any) -> Any:
    """The same result with every string, and every free key, replaced by a hostile one."""
    if isinstance(value, str):
        return HOSTILE
    if isinstance(value, dict):
        return {key: made_hostile(item) for key, item in value.items()}
    return [made_hostile(item) for item in value] if isinstance(value, list) else value


@pytest.fixture
def hostile(passed):
    result = made_hostile(passed)
    result["plan"]["environment"] = {HOSTILE: HOSTILE}
    result["proof"]["fields"] = {HOSTILE: False}
    result["machine"][HOSTILE] = HOSTILE
    for process in result["runs"]["on"]["processes"]:
        process["consulted"] = {HOSTILE: 1}
    return result


def test_a_report_loads_nothing(passed, read_page):
    page = page_of(passed)
    loading = {"src", "href", "srcset", "data", "action", "poster", "background"}
    attributes = [a for _, found in read_page(page).elements for a in found]
    assert not loading & set(attributes)
    assert set(re.findall(r"url\([^)]*\)", page)) <= {"url(#hatch)"}
    assert "@import" not in page and "@font-face" not in page


def test_a_report_runs_no_script(passed, read_page):
    page = read_page(page_of(passed))
    assert not page.of("script")
    assert not [a for _, found in page.elements for a in found if a.startswith("on")]


def test_a_report_forbids_its_browser_to_load_anything(passed, read_page):
    policies = [a["content"] for a in read_page(page_of(passed)).of("meta") if "http-equiv" in a]
    assert policies and policies[0].startswith("default-src 'none'")


def test_hostile_strings_stay_text(hostile, read_page):
    page = read_page(page_of(hostile))
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "img", "iframe", "object"}
    assert not [a for _, found in page.elements for a in found if a.startswith("on")]
    assert "<script>alert(1)</script>" in page.text()


def test_hostile_strings_make_no_classes(hostile, read_page):
    page = read_page(page_of(hostile))
    assert not [a for _, found in page.elements if "script" in (a := found.get("class", ""))]


def test_an_undecodable_title_can_be_written(passed, tmp_path):
    passed["runs"]["on"]["processes"][0]["title"] = "ray::\udcff\x00Worker"
    write_report(passed, tmp_path / "report.html")
    assert "ray::\ufffd\ufffdWorker" in (tmp_path / "report.html").read_text("utf-8")


def test_every_picture_says_what_it_shows(passed, read_page):
    page = read_page(page_of(passed))
    pictures = [a for a in page.of("svg") if a.get("role") == "img"]
    ids = {a["id"] for _, a in page.elements if "id" in a}
    assert len(pictures) == 5
    assert all(set(a["aria-labelledby"].split()) <= ids for a in pictures)


def test_ids_occur_once(passed, read_page):
    ids = [a["id"] for _, a in read_page(page_of(passed)).elements if "id" in a]
    assert len(ids) == len(set(ids))


def test_every_table_has_a_caption_and_headings(passed, read_page):
    page = read_page(page_of(passed))
    assert len(page.of("caption")) == len(page.of("table"))
    assert {a.get("scope") for a in page.of("th")} == {"col", "row"}


def test_bars_stay_inside_their_picture(passed, read_page):
    page = read_page(page_of(passed))
    ends = [
        float(a["x"].rstrip("%")) + float(a["width"].rstrip("%"))
        for a in page.of("rect")
        if a["x"].endswith("%")
    ]
    assert ends and max(ends) <= 100.01


def test_the_parts_come_in_the_order_of_reading(passed, read_page):
    ids = [a["id"] for a in read_page(page_of(passed)).of("section")]
    assert ids == [
        "checks",
        "saved",
        "proof",
        "pictures",
        "sandboxes",
        "plan",
        "processes",
        "stand-ins",
        "reproduce",
    ]


def test_sandboxes_have_their_calls_times_and_leftovers(passed, read_page):
    page = read_page(page_of(passed))
    assert "Sandboxes: 194 tool calls in 64 sandboxes, none failed, none left" in page.text("h3")
    assert {"41 ms", "40 ms", "32", "97"} <= set(page.text("td").splitlines())


def test_a_rehearsal_without_sandboxes_says_why_and_what_to_do(passed, read_page):
    passed["sandboxes"] |= {
        "reason": "gVisor's runsc is not installed.",
        "remedy": "Install gVisor.",
    }
    for run in passed["runs"].values():
        run["tools"] = None
    page = read_page(page_of(passed))
    assert "own process. gVisor's runsc is not installed." in page.text("h3")
    assert "Install gVisor." in page.text("p")
    assert "Rehearsal passed" in page.text("h1")


def test_a_failed_check_comes_first(failed, read_page):
    text = read_page(page_of(failed)).text("strong")
    assert text.index("Both runs ended") < text.index("Roll call")


def test_a_run_that_died_is_shown_as_far_as_it_got(failed, read_page):
    page = read_page(page_of(failed))
    assert "Routes: not measured with features on" in page.text("h3")
    assert "Wall time: not comparable" in page.text("h3")
    assert "ended with signal 9" in page.text("p")


def test_a_rehearsal_that_never_started_has_a_report(read_page):
    check = {"name": "Ray started", "passed": False, "detail": "port 6379 is taken"}
    page = read_page(page_of({"status": "failed", "checks": [check]}))
    assert "Rehearsal failed, 1 of 1 check" in page.text("h1")
    assert "port 6379 is taken" in page.text("p")


OPTIONAL = [
    ("created",),
    ("machine",),
    ("checks",),
    ("plan",),
    ("plan", "features"),
    ("plan", "environment"),
    ("stand_ins",),
    ("notes",),
    ("proof",),
    ("proof", "fields"),
    ("sandboxes",),
    ("sandboxes", "version"),
    *(("runs", run) for run in ("off", "on")),
    *(
        ("runs", run, part)
        for run in ("off", "on")
        for part in (
            "features",
            "seconds",
            "phases",
            "processes",
            "routes",
            "prefix",
            "packing",
            "training",
            "tools",
            "weight_versions",
            "never_consulted",
        )
    ),
]


@settings(max_examples=60, deadline=None)
@given(st.sets(st.sampled_from(OPTIONAL)))
def test_any_part_may_be_missing(missing):
    result = copy.deepcopy(EXAMPLE)
    for *path, last in missing:
        part = result
        for key in path:
            part = part.get(key, {})
        part.pop(last, None)
    assert page_of(result).endswith("</html>\n")


def test_many_steps_are_drawn_in_part_and_tabled_in_full(passed, read_page):
    packing = passed["runs"]["on"]["packing"]
    packing["per_step"] = [packing["per_step"][0] | {"step": step} for step in range(20)]
    page = read_page(page_of(passed))
    assert "The first 6 of 20 steps are drawn." in page.text("p")
    assert "step 19, on" in page.text("th")


def test_a_result_that_went_through_json_gives_the_same_report(passed):
    assert page_of(json.loads(json.dumps(passed))) == page_of(passed)


def test_a_result_of_another_shape_is_refused_with_the_field(passed, tmp_path):
    passed["runs"]["on"]["routes"]["bytes_received"] = "many"
    with pytest.raises(ValidationError, match="bytes_received"):
        write_report(passed, tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_a_report_is_replaced_whole_or_not_at_all(passed, tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("before")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(PeriodicError, match="No space"):
        write_report(passed, path)
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text() == "before"


def test_folders_above_the_report_are_made(passed, tmp_path):
    write_report(passed, tmp_path / "a" / "b" / "report.html")
    assert [p.name for p in (tmp_path / "a" / "b").iterdir()] == ["report.html"]
