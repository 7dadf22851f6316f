"""What `bench pbox` draws of what it measured."""

import html

from miles_periodic.cli.bench.sandbox_times import (
    GOALS_MS,
    NUMBERS_FILE,
    OPERATIONS,
    OPERATIONS_FILE,
    ROUND_TRIP,
    ROUND_TRIP_OVER_HTTP,
    Times,
    pictures,
)


def measured(*numbers):
    times = Times()
    for of_group in OPERATIONS.values():
        for name in of_group:
            times.note(name, 0.02)
    for number in numbers:
        for name in (ROUND_TRIP, ROUND_TRIP_OVER_HTTP, "command"):
            times.note(f"{name}, of {number}", 0.004)
    return times


def test_every_operation_and_every_number_of_sandboxes_is_drawn():
    drawn = pictures(measured(1, 100), [1, 100])
    for name in [name for of_group in OPERATIONS.values() for name in of_group]:
        assert f">{html.escape(name)}<" in drawn[OPERATIONS_FILE]
    assert drawn[NUMBERS_FILE].count(">of 100<") == drawn[NUMBERS_FILE].count(">of 1<") == 3


def test_goals_are_of_things_that_are_measured():
    names = {row["what"] for row in measured(1, 10, 100).rows()}
    assert set(GOALS_MS) <= names


def test_the_goal_of_a_round_trip_is_drawn_where_it_holds():
    drawn = pictures(measured(1, 100), [1, 100])[NUMBERS_FILE]
    assert drawn.count('class="goal"') == 2  # and the legend's
