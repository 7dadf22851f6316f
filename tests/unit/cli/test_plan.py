"""A plan as people and programs read it."""

import io
import json

import pytest
from rich.console import Console

from miles_periodic.cli.plan import show
from miles_periodic.compat.plan import Plan, Row
from miles_periodic.hooks import Evidence, Inject, Native, Off, Unsupported

SEEN = (
    Evidence(
        "sglang/srt/managers/scheduler_components/batch_result_processor.py", 154, "reads [it]"
    ),
    Evidence("sglang/srt/nothing.py", 0, "is not there"),
)
PLAN = Plan(
    ("one", "two"),
    (
        Row("one", "sglang", Native("declared and consumed", SEEN)),
        Row("one", "megatron", Unsupported("no [such] thing", "Use another tree.", SEEN, "a.b:c")),
        Row("one", "miles", Inject("lacks it", SEEN, ("rollout/request",))),
        Row("two", "miles", Off("not asked for")),
    ),
    {"sglang": "sglang at somewhere"},
    {
        "torch": {"present": True, "version": "2.9", "commit": "0123456789abcdef"},
        "ray": {"present": False, "version": None, "commit": None},
    },
)


@pytest.fixture(params=[80, 200])
def printed(request):
    out = io.StringIO()
    show(PLAN, console=Console(file=out, width=request.param, highlight=False))
    return out.getvalue(), request.param


def test_no_line_is_wider_than_the_terminal(printed):
    text, width = printed
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width


@pytest.mark.parametrize(
    "words",
    [
        "native",
        "inject",
        "unsupported",
        "off",
        "no [such] thing",
        "reads [it]",
        "a.b:c",
        "Use another tree.",
        "rollout/request",
        "sglang/srt/nothing.py",
        "is not there",
        "torch 2.9 @ 0123456789",
        "not here: ray",
        "sglang at somewhere",
    ],
)
def test_everything_that_was_decided_is_shown(printed, words):
    assert words in printed[0]


def test_json_is_the_plan_and_nothing_else(capsys):
    show(PLAN, json_output=True)
    assert json.loads(capsys.readouterr().out) == PLAN.to_json()
