"""kv-preservation in a whole run of the wheel's stack: bound everywhere, and heard in the log."""

import json

import pytest

from miles_periodic.compat.cpu.flags import CpuRun

pytestmark = pytest.mark.real

PREFIX = "miles_periodic/kv/"


def metrics_of(outcome):
    """The feature's numbers of each rollout step, by their short names."""
    lines = [
        json.loads(line)
        for path in sorted(outcome.records.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    logged = [line["metrics"] for line in lines if line["kind"] == "metrics"]
    return [
        {name.removeprefix(PREFIX): value for name, value in metrics.items() if PREFIX in name}
        for metrics in logged
        if f"{PREFIX}requests" in metrics
    ]


def test_each_step_of_a_run_logs_what_the_caches_saved_and_how_old_its_rollouts_are(cpu_run):
    outcome = cpu_run(
        "kv-preservation",
        shape=CpuRun(num_rollouts=2),
        settings={"kv-preservation": {"max_off_policy_steps": 1}},
    )
    assert (outcome.status, outcome.problems) == (0, []), outcome.log.read_text()[-3000:]
    steps = metrics_of(outcome)
    assert len(steps) == 2
    for step in steps:
        assert step["reused_tokens"] > 0 and step["requests"] > 0
        assert step["stale_tokens"] == step["retractions"] == 0
        assert step["age_min"] == step["age_max"] == 0
        assert step["cancelled_rollouts"] == step["dropped_samples"] == 0
    asked = {"weights/pause", "weights/request", "rollout/cancellable", "rollout/logged-step"}
    assert not asked & set(outcome.never_consulted)
