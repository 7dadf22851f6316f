"""Runs that go wrong on purpose: each ends soon, with the name of what was wrong."""

import pytest

from miles_periodic.compat.cpu.flags import CpuRun

pytestmark = pytest.mark.real

#: In the first train actor only: the binding is said to be applied, and is not.
BREAK_ONE_TRAINER = """
import os
if os.environ.get("MILES_PERIODIC_CPU_TRAINER"):
    try:
        os.mkdir({marker!r})
    except FileExistsError:
        pass
    else:
        from miles_periodic.compat import boot
        native = boot.apply_binding
        def skip(binding, module):
            applied = native(binding, module)
            if binding.name == "training/actor-replay-fill":
                wrapper = vars(applied.holder)[applied.attribute]
                setattr(applied.holder, applied.attribute, wrapper.__wrapped__)
            return applied
        boot.apply_binding = skip
"""


def test_a_binding_that_is_broken_in_one_process_only_ends_the_run_and_names_both(
    cpu_run, tmp_path
):
    outcome = cpu_run(
        "delta-router-replay", site=BREAK_ONE_TRAINER.format(marker=str(tmp_path / "broken"))
    )
    assert outcome.status != 0
    (failure,) = [p for p in outcome.problems if p.startswith("roll call")]
    assert "training/actor-replay-fill in " in failure and "replaced" in failure
    assert "generate" not in {phase["name"] for phase in outcome.phases}


def test_the_rust_router_that_drops_routes_is_found_by_the_round_trip(cpu_run):
    outcome = cpu_run("delta-router-replay", shape=CpuRun(num_rollouts=1, use_miles_router=False))
    (failure,) = [p for p in outcome.problems if p.startswith("roll call")]
    assert "routes come back through the router" in failure
    assert "--use-miles-router" in failure
