"""What a model is told of a call."""

import asyncio

import pytest

from miles_periodic.plugins.pbox.outcomes import (
    Exited,
    Killed,
    OutOfMemory,
    OutputTruncated,
    Result,
    TimedOut,
)
from miles_periodic.plugins.pbox.rollout import tools


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Exited(0), "out\nerr"),
        (Exited(3), "out\nerr\n(exit status 3)"),
        (Killed(9, "num_processes"), "at the limit of processes)"),
        (Killed(11), "(ended by signal 11)"),
        (TimedOut(60.0), "(stopped after 60 seconds)"),
        (OutOfMemory(512 << 20), "(stopped at 512 MiB of memory)"),
        (OutputTruncated(5), "(stopped after 5 bytes of output)"),
    ],
)
def test_every_outcome_is_told_after_what_was_written(outcome, words):
    said = tools.told(Result(outcome, b"out\n", b"err\n", 0.0, True))
    assert said.startswith("out\nerr") and said.endswith(words)


def test_a_command_that_wrote_nothing_is_told_as_such():
    assert tools.told(Result(Exited(0), b"", b"", 0.0, True)) == "(no output)"


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        ("teleport", {}, "there are: shell, python."),
        ("shell", {"code": "ls"}, "one parameter, command"),
        ("python", {"code": 7}, "one parameter, code"),
        ("python", {"code": "a\0b"}, "without NUL"),
        ("python", ["code"], "one parameter, code"),
    ],
)
def test_a_call_that_cannot_be_run_is_answered_and_starts_nothing(name, parameters, words):
    assert words in asyncio.run(tools.execute(name, parameters))
