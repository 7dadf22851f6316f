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


@pytest.mark.parametrize(
    ("rows", "allowed", "verdict"),
    [
        ([Row("two", "miles", Inject("lacks it", SEEN, ()))], (), "would start with one and two."),
        ([Row("two", "miles", Off("no such servers"))], (), "would start with one, without two."),
        (
            [Row("two", "miles", Unsupported("no such thing", "Use another tree.", SEEN))],
            (),
            "would be refused: two cannot be had.",
        ),
        (
            [Row("two", "miles", Unsupported("no such thing", "Use another tree.", SEEN))],
            ("two",),
            "would start with one, without two.",
        ),
    ],
    ids=["whole", "off", "unsupported", "allowed to be missing"],
)
def test_the_last_line_says_whether_a_launch_would_start(rows, allowed, verdict):
    first = Row("one", "miles", Native("declared and consumed", SEEN))
    out = io.StringIO()
    plan = Plan(("one", "two"), (first, *rows), {}, {}, allowed)
    show(plan, console=Console(file=out, width=80, highlight=False))
    assert out.getvalue().rstrip().endswith(verdict)


def test_what_nobody_asked_for_is_no_part_of_the_verdict():
    out = io.StringIO()
    show(PLAN, console=Console(file=out, width=80, highlight=False), quiet=True)
    assert "not asked for: two" in out.getvalue()
    assert "two" not in out.getvalue().splitlines()[-1]


def test_quiet_is_a_line_per_feature_and_the_verdict():
    out = io.StringIO()
    show(PLAN, console=Console(file=out, width=80, highlight=False), quiet=True)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines == [
        "one  sglang native, megatron unsupported, miles inject",
        "not asked for: two",
        "",
        "A launch would be refused: one cannot be had.",
    ]


def test_without_quiet_the_same_lines_stand_last(printed):
    text, _ = printed
    assert text.index("reads [it]") < text.index("In short\none  sglang native")


def test_a_feature_for_servers_that_a_run_may_lack_refuses_only_the_runs_that_have_them():
    missing = Unsupported("no such thing", "Use another tree.", SEEN)
    plan = Plan(("one",), (Row("one", "sglang", missing),), {}, {})
    out = io.StringIO()
    console = Console(file=out, width=80, highlight=False)
    show(plan, console=console, only_with={"one": "decode servers"})
    assert "A launch would start with no feature, without one." in out.getvalue()
    assert "One with decode servers would be refused: one cannot be had." in out.getvalue()
