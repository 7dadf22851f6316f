"""Megatron's own packing scheduler at git dev or main, alone and with our binding in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from miles_periodic.cli.bench.stock_orders import in_arrival_order
from miles_periodic.compat.plan import make_plan
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks import Native
from miles_periodic.plugins import features

PROCESS = Path(__file__).parents[1] / "lines" / "packing_scheduler_process.py"
TIMEOUT_SECONDS = 900
CAP = 64


def made_cases() -> list[dict]:
    rng = np.random.default_rng(0)
    return [
        {
            "lengths": rng.integers(1, CAP, int(rng.integers(ranks * 8, 80))).tolist(),
            "ranks": ranks,
            "context": context,
            "group": group,
            "cap": CAP,
        }
        for ranks in (1, 2, 4)
        for context in (1, 2)
        for group in (None, 2)
        for _ in range(8)
    ]


@pytest.fixture(scope="module")
def cases(megatron_tree):
    """Each case with the groups of the scheduler alone and bound."""
    made = made_cases()
    done = subprocess.run(
        [sys.executable, str(PROCESS), str(megatron_tree)],
        input=json.dumps(made),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    return [case | answer for case, answer in zip(made, answers, strict=True)]


def by_rank(groups, case):
    """Groups as `[rank][slot]`, each sample once."""
    return [[slot[rank * case["context"]] for slot in groups] for rank in range(case["ranks"])]


def test_the_stock_order_of_the_benchmark_is_that_of_megatron(cases):
    compared = 0
    for case in cases:
        if case["group"] is None and isinstance(case["alone"], list):
            cap = CAP * case["context"]
            ours = in_arrival_order(case["lengths"], case["ranks"], cap)
            assert by_rank(case["alone"], case) == ours
            compared += 1
    assert compared > 40


def test_groups_of_the_bound_scheduler_have_the_form_of_its_own(cases):
    for case in cases:
        groups = case["bound"]
        assert len(groups) % (case["group"] or 1) == 0
        assert {len(slot) for slot in groups} == {case["ranks"] * case["context"]}
        once = [one for rank in by_rank(groups, case) for one in rank]
        assert sorted(i for one in once for i in one) == list(range(len(case["lengths"])))
        cap = CAP * case["context"]
        assert all(one and sum(case["lengths"][i] for i in one) <= cap for one in once)


def test_the_plan_binds_the_scheduler_in_its_known_form(megatron_tree):
    tree = Tree.at("megatron", megatron_tree)
    kind = next(f for f in features() if f.slug == "cost-aware-packing")
    settings = {kind.slug: kind.settings_model(megatron_scheduler=True)}
    rows = make_plan(
        features(), [kind.slug], {"megatron": tree}, environment={}, settings=settings
    ).rows_of(kind.slug)
    (decision,) = (row.decision for row in rows if row.upstream == "megatron")
    assert not isinstance(decision, Native)
    assert "training/packing-scheduler" in decision.bindings
