"""Each kind of condition on a small server: where it holds, and what is missing where not."""

import pytest

from miles_periodic.compat.conditions import judge
from miles_periodic.hooks.conditions import condition_from

GATHER = {"consumes": "GenerateReqInput.start_row", "in": ["srt/managers"]}
COLLECT = "sglang.srt.managers.collector:Collector.collect"


@pytest.fixture
def judged(made_tree):
    return lambda part, changes=None: judge(condition_from(part), made_tree(changes))


HOLDS = {
    "defines": {"defines": COLLECT},
    "defines a module": {"defines": "sglang.srt.managers.collector"},
    "defines one of two": {"defines": ["sglang.srt.gone:f", COLLECT]},
    "declares": {"declares": "Req.start_row", "in": "srt/managers"},
    "reads": {"reads": "start_row", "in": "srt/managers/collector.py"},
    "reads in a definition": {"reads": "start_row", "in": COLLECT},
    "consumes": GATHER,
    "text": {"text": "self.rows[req.start_row:]", "in": COLLECT},
    "text in a folder": {"text": "self.rows[req.start_row:]", "in": "srt"},
    "any": {"any": [{"defines": "sglang.srt.gone:f"}, {"defines": COLLECT}]},
    "not": {"not": {"defines": "sglang.srt.gone:f"}},
    "all": [{"defines": COLLECT}, GATHER],
}
FAILS = {
    "defines": ({"defines": "sglang.srt.managers.collector:Collector.gone"}, "is not there"),
    "defines a module": ({"defines": "sglang.srt.gone"}, "is not there"),
    "declares": ({"declares": "Collector.start_row", "in": "srt"}, "has no field start_row"),
    "reads": ({"reads": "stop_row", "in": "srt"}, "nothing reads stop_row"),
    "reads elsewhere": ({"reads": "queue", "in": COLLECT}, "nothing reads queue"),
    "consumes": (
        {"consumes": "GenerateReqInput.stop_row", "in": "srt/managers"},
        "declares no field stop_row",
    ),
    "text": ({"text": "self.rows[stop:]", "in": COLLECT}, "does not say self.rows[stop:]"),
    "text in a file that is not there": ({"text": "x", "in": "srt/gone.py"}, "it is not there"),
    "any": ({"any": [{"defines": "sglang.srt.gone:f"}]}, "is not there"),
    "not": ({"not": {"defines": COLLECT}}, "is defined"),
    "all": ([{"defines": COLLECT}, {"defines": "sglang.srt.gone:f"}], "is not there"),
    "all of none": ([], ""),
}


@pytest.mark.parametrize("part", HOLDS.values(), ids=HOLDS)
def test_a_condition_that_holds_shows_where(judged, part):
    verdict = judged(part)
    assert verdict.holds and verdict.evidence


@pytest.mark.parametrize(("part", "words"), FAILS.values(), ids=FAILS)
def test_a_condition_that_does_not_hold_says_what_is_missing(judged, part, words):
    verdict = judged(part)
    assert not verdict.holds
    assert words in "\n".join(map(str, verdict.evidence))


def test_text_is_sought_in_code_and_not_in_comments_or_docstrings(judged):
    collector = '''
        class Collector:
            """Takes self.rows[stop:]."""
            def collect(self, req):
                """self.rows[stop:]"""
                return req  # self.rows[stop:]
        '''
    part = {"text": "self.rows[stop:]", "in": COLLECT.rpartition(".")[0]}
    assert not judged(part, {"srt/managers/collector.py": collector}).holds


def test_text_is_found_on_its_own_line(judged):
    (evidence,) = judged({"text": "self.rows[req.start_row:]", "in": "srt/managers"}).evidence
    assert (evidence.path, evidence.line) == ("sglang/srt/managers/collector.py", 3)


def test_a_field_that_nothing_reads_any_more_is_no_longer_consumed(judged):
    assert not judged(GATHER, {"srt/managers/collector.py": "class Collector:\n    pass\n"}).holds


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"defines": "a.b:c", "reads": "d", "in": "e"}, "has not exactly one of"),
        ({"reads": "field"}, "does not say in which places"),
        ({"text": "x", "in": "srt", "without": "y"}, "keys that text does not take: without"),
        ({"declares": "field", "in": "srt"}, "'field' is not Class.field"),
        ("a.b:c", "is no condition"),
    ],
)
def test_a_malformed_condition_says_what_is_wrong_with_it(part, words):
    with pytest.raises(ValueError, match=words):
        condition_from(part)
