"""What may run beside what, where two workers share the tests: one lane is one worker's.

A worker that waits for a process to import torch leaves a core to the other one. A whole run of the
stack holds 6.5 GB and Ray's ports, so that no two run at once; a server holds 3 GB.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

#: Every real test that is in no other list stands in this lane, behind the runs of the stack. Runs
#: that are stopped or broken come first, so that what looks for leftovers looks after them.
WHOLE_RUNS = "whole runs"
RUNS = (
    "tests/real/test_broken_runs.py",
    "tests/real/test_interrupted_rehearsal.py",
    "tests/real/test_kv_in_a_run.py",
    "tests/real/test_layer_alone.py",
    "tests/real/test_rehearsal.py",
    "tests/real/test_request_routing_in_a_run.py",
)
REAL = (
    "tests/real/",
    "tests/miles_main/",
    "tests/megatron_dev/",
    "tests/field/test_sandbox_reports.py",
)

#: One agent for all tests of sandboxes, so one worker for them.
SANDBOXES = "sandboxes"
#: A few gigabytes at most. Two files read what the same ranks of Megatron found out.
LIGHT = {
    "tests/real/test_pbox_over_http.py": SANDBOXES,
    "tests/field/test_offloaded_training_reports.py": "offloaded training",
    "tests/real/test_losses_without_logits.py": "losses",
    "tests/real/test_megatron_saves.py": "saves",
    "tests/real/test_miles_export.py": "saves",
    "tests/real/test_miles_save.py": "saves",
    "tests/real/test_offload_bench.py": "bench",
    "tests/real/test_offloaded_training.py": "offloaded training",
    "tests/real/test_packing_in_a_step.py": "packing",
    "tests/real/test_rust_router_keys.py": "keys",
    "tests/field/test_sandbox_reports.py": SANDBOXES,
    "tests/real/test_quantised_training.py": "quantised training",
    "tests/real/test_pbox_commands.py": SANDBOXES,
    "tests/real/test_pbox_files.py": SANDBOXES,
    "tests/real/test_pbox_hostile.py": SANDBOXES,
    "tests/real/test_pbox_lifetime.py": SANDBOXES,
    "tests/real/test_pbox_nodes.py": SANDBOXES,
    "tests/real/test_pbox_oci.py": SANDBOXES,
    "tests/real/test_pbox_pressure.py": SANDBOXES,
    "tests/real/test_pbox_rollouts.py": SANDBOXES,
    "tests/real/test_pbox_slurm.py": SANDBOXES,
    "tests/real/test_pbox_up.py": SANDBOXES,
    # Starts `miles`, and a test of the launcher in that lane runs `pkill -9 miles`.
    "tests/unit/cli/test_main.py": WHOLE_RUNS,
}
#: One or two servers each, a lane for each file. They come last, when the runs are over, and the
#: longest first, so that no worker ends long before the other.
SERVERS = (
    "tests/real/test_router_replay_servers.py",
    "tests/real/test_injected_servers.py",
    "tests/real/test_prefill_decode.py",
    "tests/real/test_request_routing.py",
    "tests/real/test_weight_updates.py",
    "tests/real/test_sessions.py",
    "tests/real/test_miles_over_a_server.py",
    "tests/real/test_cancelled_rollouts.py",
    "tests/field/test_weight_update_reports.py",
)


def file_of(nodeid: str) -> str:
    """The file of a test, relative to the root."""
    return nodeid.partition("::")[0]


def lane_of(file: str) -> str:
    """The lane that a file's tests run in, one after the other."""
    if file in SERVERS:
        return file
    if file in LIGHT:
        return LIGHT[file]
    return WHOLE_RUNS if file.startswith(REAL) else file


def place_of(file: str) -> tuple[int, int]:
    """Where a file's tests begin: runs of the stack first, servers last, in the lists' order."""
    if file in RUNS:
        return 0, RUNS.index(file)
    if file in SERVERS:
        return 3, SERVERS.index(file)
    return (1, 0) if lane_of(file) == WHOLE_RUNS else (2, 0)


class Lanes(LoadScopeScheduling):
    """Gives a worker one lane at a time, in the order of `place_of`."""

    def __init__(self, config, log=None):
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return lane_of(file_of(nodeid))
