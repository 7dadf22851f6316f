"""request-routing in a whole run of the wheel's stack with two servers behind Miles's router."""

import json

import pytest

from miles_periodic.compat.cpu.flags import CpuRun

pytestmark = pytest.mark.real

#: The prompts of this run are short: an open request weighs no more than one of their tokens.
SETTINGS = {"load_weight": 1.0, "queue_weight": 1.0, "kv_weight": 1.0}


def later_turns(outcome):
    """Cached tokens of each turn after a rollout's first, with what the turn before left."""
    lines = [
        json.loads(line)
        for path in sorted(outcome.records.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    turns = {(line["rollout"], line["turn"]): line for line in lines if line["kind"] == "request"}
    for (rollout, number), turn in turns.items():
        before = turns.get((rollout, number - 1))
        if before is not None:
            yield turn["cached_tokens"], len(before["tokens"]) + len(before["new_tokens"])


def test_every_later_turn_of_a_run_finds_its_prefix_and_the_roll_call_shows_who_routed(cpu_run):
    outcome = cpu_run(
        "request-routing",
        shape=CpuRun(num_rollouts=1, num_engines=2),
        settings={"request-routing": SETTINGS},
    )
    assert (outcome.status, outcome.problems) == (0, []), outcome.log.read_text()[-3000:]
    turns = list(later_turns(outcome))
    assert len(turns) > 10
    assert [pair for pair in turns if pair[0] < pair[1] - 1] == []
    consulted = [(row["role"], set(row["consulted"])) for row in outcome.processes]
    assert ("rollout-manager", {"rollout/scope", "routing/rollout-key"}) in consulted
    # Miles forks its router from the rollout manager, whose title it keeps.
    assert ("rollout-manager", {"routing/request", "routing/server"}) in consulted
