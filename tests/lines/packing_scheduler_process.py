"""One process that groups samples by Megatron's own packing scheduler, alone and bound.

    packing_scheduler_process.py TREE

TREE holds the package `megatron`. Reads cases as JSON from standard input, each with `lengths`,
`ranks`, `context`, `group` (or null) and `cap`; prints for each the groups of the scheduler alone
and with the binding in, or what it raised, as one line of JSON. Nothing is sent anywhere.
Megatron's arguments, whose package asks for a newer Python, are a stand-in.
"""

from __future__ import annotations

import json
import sys
from types import ModuleType

TREE = sys.argv[1]
sys.path.insert(0, TREE)

import lone_process  # noqa: E402
from schedule_rules import arguments  # noqa: E402

from miles_periodic.compat.catalog import bindings_named, names_for_settings  # noqa: E402
from miles_periodic.compat.manifest import FeatureReference, RunManifest  # noqa: E402
from miles_periodic.compat.tree import Tree  # noqa: E402

SLUG = "cost-aware-packing"
FEATURE = "miles_periodic.plugins.cost_aware_packing.feature:CostAwarePacking"


def join() -> None:
    names = names_for_settings(SLUG, "megatron", ["megatron_scheduler"], Tree.at("megatron", TREE))
    reference = FeatureReference(SLUG, FEATURE, {})
    lone_process.join(RunManifest("run", "", "", (reference,), bindings_named(names)))


def groups_of(scheduler, case):
    """The groups, or the words of a refusal."""
    try:
        return scheduler.get_groups_and_subsamples(list(enumerate(case["lengths"])))
    except AssertionError as refusal:
        return str(refusal)


def main() -> None:
    lone_process.Member.count = lambda self, name: None
    join()
    training = sys.modules["megatron.training"] = ModuleType("megatron.training")
    training.get_args = arguments
    from megatron.core.datasets.data_schedule import DpBalancedScheduler

    method = DpBalancedScheduler.get_groups_and_subsamples
    answers = []
    for case in json.load(sys.stdin):
        given = (case["cap"], case["context"], case["ranks"], case["group"])
        DpBalancedScheduler.get_groups_and_subsamples = method.__wrapped__
        alone = groups_of(DpBalancedScheduler(*given), case)
        DpBalancedScheduler.get_groups_and_subsamples = method
        bound = groups_of(DpBalancedScheduler(*given), case)
        answers.append({"alone": alone, "bound": bound})
    print(json.dumps(answers))


main()
