"""The model fleet: the same traffic for every choice, nothing reused that is not held."""

import dataclasses

import pytest

from miles_periodic.cli.bench.fleet import Server, Traffic, simulate

SMALL = Traffic(num_servers=4, num_rollouts=24, num_open=8, prompt_tokens=64, turn_tokens=32)


def test_every_turn_of_every_rollout_is_taken_once():
    outcome = simulate(SMALL, lambda rollout, servers: 0)
    assert outcome.num_turns == SMALL.num_rollouts * SMALL.num_turns


def test_a_fleet_with_room_for_more_rollouts_than_there_are_runs_them_all():
    few = dataclasses.replace(SMALL, num_rollouts=3)
    assert simulate(few, lambda rollout, servers: 0).num_turns == 3 * few.num_turns


def test_a_rollout_that_stays_finds_everything_and_one_that_always_moves_only_its_prompt():
    stays = simulate(SMALL, lambda rollout, servers: rollout.number % 4)
    assert (stays.reuse_rate, stays.num_moved) == (1.0, 0)
    moves = simulate(SMALL, lambda rollout, servers: (rollout.number + rollout.turn) % 4)
    assert moves.reuse_rate < 0.7


@pytest.mark.parametrize("choice", [lambda r, s: 0, lambda r, s: r.number % 4])
def test_the_same_choice_twice_gives_the_same_numbers(choice):
    assert simulate(SMALL, choice) == simulate(SMALL, choice)


def test_a_server_lets_the_least_recently_used_sequence_go():
    server = Server()
    for number in (1, 2, 1, 3):
        server.keep(("rollout", number), 10, capacity_tokens=20)
    assert list(server.held) == [("rollout", 1), ("rollout", 3)]
    assert server.held_tokens == 20


def test_a_server_holds_no_more_of_a_prompt_than_there_is():
    server = Server()
    server.keep(("rollout", 1), 90, capacity_tokens=100)
    assert server.reuse(1, 0, 50) == 50
    assert server.reuse(2, 0, 50) == 0
