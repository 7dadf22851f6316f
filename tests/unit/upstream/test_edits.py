"""Edits by structure: found once or refused, and nothing else of the text changes."""

import pytest

from miles_periodic.upstream.contributions import Edit, NotFound, Statement
from miles_periodic.upstream.edits import edited

SOURCE = '''\
"""A module."""
import os
from a.b import (
    one,
)


class Planner:
    # why it is so

    def plan( self,x ):
        total = 0   # odd spacing stays
        for each in x:
            if each.big and flag:
                total += weigh(each)

        return total


parser.add_argument("--first", help="x")
kept = {'a':1}
'''


def edit(do, code, within="", old="", **at):
    return edited(SOURCE, [Edit("m.py", do, code, within, Statement(**at), old)])


def refused(do, code, within="", old="", **at):
    with pytest.raises(NotFound) as error:
        edit(do, code, within, old, **at)
    return error.value


def added(text):
    """The lines that are new; every other line must be as it was."""
    before = SOURCE.splitlines()
    lines = text.splitlines()
    new = [line for line in lines if line not in before]
    assert [line for line in lines if line in before and line] == [b for b in before if b]
    return new


def test_an_import_joins_one_of_the_same_module():
    assert "from a.b import (\n    two, one,\n)" in edit("import", "from a.b import two")


def test_an_import_that_is_there_already_is_not_written_twice():
    assert edit("import", "from a.b import one") == SOURCE


def test_code_stands_in_front_of_the_statement_and_at_its_depth():
    assert added(edit("before", "check(x)", "Planner.plan", tests="flag")) == [
        "            check(x)"
    ]


def test_code_stands_behind_the_statement():
    text = edit("after", "more()", passes="--first")
    assert added(text) == ["more()"]
    assert text.index("more()") > text.index("--first")


def test_a_branch_goes_in_front_of_an_if():
    text = edit("branch", "if quick:\n    pass", "Planner.plan", tests="flag")
    assert (
        "            if quick:\n                pass\n            elif each.big and flag:" in text
    )


def test_a_replaced_statement_leaves_the_blank_line_above_it():
    text = edit("replace", "return total or 1", "Planner.plan", returns="total")
    assert "                total += weigh(each)\n\n        return total or 1\n" in text


def test_an_expression_is_found_whatever_its_spacing():
    assert "kept = {'a':2}" in edit("expression", "{'a':2}", old='{ "a": 1 }'.replace('"', "'"))


def test_code_is_appended_to_a_class():
    text = edit("append", "\ndef more(self):\n    return 1", "Planner")
    assert "        return total\n\n    def more(self):\n        return 1\n" in text


def test_a_line_of_a_text_goes_behind_the_one_with_the_words():
    text = edited("| a |\n| b |\n| c |\n", [Edit("t.md", "line", "| new |", old="| b |")])
    assert text == "| a |\n| b |\n| new |\n| c |\n"


def test_a_statement_that_is_gone_is_named_with_what_was_expected():
    error = refused("after", "x()", "Planner.plan", calls="other")
    assert (error.target, error.found) == ("m.py:Planner.plan", "none")
    assert error.expected == "one statement that calls other"


def test_two_statements_that_fit_are_refused():
    assert refused("after", "x()", holds="total").found.endswith("of them")


def test_a_function_that_is_gone_is_refused():
    assert "one definition of plans" in refused("append", "x()", "Planner.plans").expected


def test_a_second_expression_like_it_is_refused():
    assert refused("expression", "1", old="total").found == "3 of them"


def test_the_line_of_a_text_must_stand_there_once():
    with pytest.raises(NotFound, match="expected one line with"):
        edited("a\na\n", [Edit("t.md", "line", "b", old="a")])


def test_the_head_of_a_compound_statement_is_searched_without_its_body():
    with pytest.raises(NotFound, match="found none"):
        edit("after", "x()", "Planner.plan", calls="weigh", tests="flag")
