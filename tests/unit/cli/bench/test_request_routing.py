"""The comparison of choices: scores keep prefixes, and spread what has none."""

from miles_periodic.cli.bench.fleet import Traffic
from miles_periodic.cli.bench.request_routing import decision_cost, measure

SMALL = Traffic(num_servers=4, num_rollouts=48, num_open=16, prompt_tokens=256, turn_tokens=256)


def test_scores_keep_more_prefixes_than_the_fewest_open_requests():
    stock, _, scores = measure(SMALL)["rows"]
    assert scores["reuse_rate"] > stock["reuse_rate"] + 0.2
    assert scores["turns_moved"] < stock["turns_moved"]


def test_a_decision_is_timed_in_its_two_parts():
    reading, choosing = decision_cost(256, 4, num_runs=3)
    assert reading > 0 and choosing > 0
