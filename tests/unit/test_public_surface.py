"""What users and other packages rely on, frozen: adding to it is a visible line in this file."""

import typer

from miles_periodic import hooks
from miles_periodic.cli import commands
from miles_periodic.cli.main import app
from miles_periodic.compat.manifest import GATE, RUN_ID
from miles_periodic.compat.plan import SCHEMA
from miles_periodic.compat.roll_call.member import ENDED_STATUS
from miles_periodic.hooks.errors import ROLL_CALL_STATUS, USAGE_STATUS
from miles_periodic.hooks.manager import EXCLUSIVE_HOOKS, FEATURE_GROUP, build_manager
from miles_periodic.hooks.settings import ENVIRONMENT_PREFIX
from miles_periodic.plugins import features, pbox

PLUGIN_OPTIONS = ["--accept-drift", "--allow-missing", "--plugin-config", "--plugin-set"]


def test_the_names_that_a_plugin_imports_are_these():
    assert hooks.__all__ == [
        "DataParallelSplit",
        "Decision",
        "Evidence",
        "Feature",
        "FeatureSettings",
        "Inject",
        "Native",
        "Off",
        "PeriodicError",
        "RolloutState",
        "RoutedAnswer",
        "RoutedRequest",
        "ServerState",
        "TrainBatch",
        "Unsupported",
        "hookimpl",
    ]


def test_the_hooks_are_these():
    assert sorted(vars(build_manager([]).hook)) == [
        "check_running_server",
        "checkpoint_waves",
        "complete_arguments",
        "data_parallel_rank",
        "expected_prefix_tokens",
        "export_checkpoint",
        "generate_request_fields",
        "offloaded_optimizer",
        "reaches_into_sessions",
        "request_answered",
        "request_routed",
        "rollout_response",
        "rollout_step_metrics",
        "rollout_verdict",
        "routed_experts_for_training",
        "routed_experts_of_pair",
        "routed_experts_of_response",
        "routed_experts_of_session",
        "routed_experts_on_the_wire",
        "routing_key",
        "server_arguments",
        "server_for_request",
        "server_proofs",
        "session_request_fields",
        "session_response_refusal",
        "split_train_batch",
        "token_log_probs",
        "wants_weight_version",
    ]


def test_the_hooks_that_only_one_feature_may_answer_are_these():
    assert sorted(EXCLUSIVE_HOOKS) == [
        "checkpoint_waves",
        "data_parallel_rank",
        "expected_prefix_tokens",
        "export_checkpoint",
        "offloaded_optimizer",
        "routed_experts_for_training",
        "routed_experts_of_pair",
        "routed_experts_of_response",
        "routed_experts_of_session",
        "routed_experts_on_the_wire",
        "routing_key",
        "server_for_request",
        "split_train_batch",
        "token_log_probs",
    ]


def test_the_features_and_their_settings_are_these():
    assert {f.slug: sorted(f.settings_model.model_fields) for f in features()} == {
        "chunked-optimizer-offload": ["chunk_bytes", "moment_dtype", "workspace_bytes"],
        "chunked-checkpoint-staging": ["allow_async_save", "staging_bytes"],
        "cost-aware-packing": ["megatron_scheduler", "recompute", "seed", "time_budget_seconds"],
        "decode-radix-cache": ["prove_reuse", "refuse_unpaired"],
        "delta-router-replay": [
            "check_capture_buffer",
            "compact_wire",
            "join_halves",
            "keep_rows_on_retraction",
            "max_constant_run",
            "max_rank_bytes",
            "prove_round_trip",
        ],
        "fast-resharding": ["stop_on_failure", "verify", "workers"],
        "fused-linear-cross-entropy": ["chunk_tokens", "chunk_vocabulary", "kernel"],
        "kv-preservation": ["max_off_policy_steps", "pause_in_place", "prove_salt", "salt"],
        "request-routing": [
            "block_tokens",
            "index_tokens",
            "kv_weight",
            "load_weight",
            "max_rollouts",
            "prefix_weight",
            "queue_weight",
            "router_policy",
            "score_servers",
            "sticky_keys",
            "sticky_ranks",
        ],
    }


def options_by_command(command, name="miles"):
    options = sorted(flag for p in command.params for flag in p.opts if flag.startswith("--"))
    found = {name: [o for o in options if "completion" not in o and o != "--help"]}
    for below, part in getattr(command, "commands", {}).items():
        found |= {} if part.hidden else options_by_command(part, f"{name} {below}")
    return found


def test_the_commands_and_their_options_are_these():
    commands.add_to(app)
    assert options_by_command(typer.main.get_command(app)) == {
        "miles": [*PLUGIN_OPTIONS, "--plugins", "--version"],
        "miles plan": [
            "--accept-drift",
            "--allow-missing",
            "--json",
            "--plugin-config",
            "--plugin-set",
            "--plugins",
            "--tree",
        ],
        "miles rehearse": ["--json", "--report", "--steps", "--without", "--work-dir"],
        "miles pbox": [],
        "miles pbox agent": [
            "--allow-unenforced",
            "--cgroup",
            "--cpus",
            "--heartbeat-seconds",
            "--image",
            "--image-dir",
            "--listen",
            "--max-sandboxes",
            "--memory-mib",
            "--platform",
            "--runsc",
            "--state-dir",
            "--stop-with-stdin",
            "--token-file",
            "--warm",
        ],
        "miles pbox ls": ["--address", "--job", "--json", "--token-file"],
        "miles pbox top": ["--address", "--job", "--seconds", "--token-file"],
        "miles pbox logs": ["--address", "--job", "--token-file"],
        "miles pbox kill": ["--address", "--job", "--token-file"],
        "miles pbox run": [
            "--address",
            "--image",
            "--job",
            "--memory-mib",
            "--output-mib",
            "--seconds",
            "--token-file",
            "--with",
        ],
        "miles pbox up": [
            "--image",
            "--image-dir",
            "--listen-on",
            "--memory-mib",
            "--platform",
            "--runsc",
            "--sandbox-cpus",
            "--share",
            "--warm",
        ],
        "miles pbox image": [],
        "miles pbox image build": ["--image-dir"],
        "miles pbox image pull": ["--image-dir"],
        "miles pbox image add": ["--image-dir"],
        "miles pbox image ls": ["--image-dir"],
        "miles pbox image rm": ["--image-dir"],
        "miles pbox image prune": ["--image-dir"],
        "miles reshard": [
            "--address",
            "--config",
            "--dtype",
            "--ignore",
            "--json",
            "--model-type",
            "--quantize",
            "--resume",
            "--set",
            "--shard-bytes",
            "--verify",
            "--workers",
        ],
        "miles compat": [],
        "miles compat add": ["--dry-run", "--lines"],
        "miles compat matrix": [
            "--check",
            "--json",
            "--markdown",
            "--on-file",
            "--release",
            "--tree",
            "--write",
        ],
        "miles patches": [],
        "miles patches list": ["--json"],
        "miles patches check": ["--checkout", "--json", "--upstream"],
        "miles patches apply": ["--checkout", "--upstream"],
        "miles patches revert": ["--checkout", "--upstream"],
        "miles patches export": ["--author", "--checkout", "--output", "--upstream"],
        "miles upstream": [],
        "miles upstream expired": ["--json", "--tree"],
        "miles upstream prepare": [
            "--base",
            "--body",
            "--branch",
            "--checkout",
            "--measured",
            "--python",
            "--test",
            "--upstream",
        ],
        "miles upstream refresh": ["--write"],
        "miles upstream show": ["--tree"],
        "miles upstream status": ["--feature", "--json", "--tree"],
        "miles upstream verify": ["--on-file", "--release", "--tree"],
        "miles bench": [],
        "miles bench boot": ["--json", "--runs"],
        "miles bench checkpoint-staging": [
            "--json",
            "--mebibytes",
            "--megatron",
            "--staging-mebibytes",
        ],
        "miles bench decode-radix": ["--json", "--path", "--sglang", "--turns"],
        "miles bench loss": ["--json", "--repeats", "--tokens", "--vocabulary", "--width"],
        "miles bench offload": [
            "--chunk-mib",
            "--json",
            "--kernel",
            "--megatron",
            "--moment-dtype",
            "--parameters",
            "--steps",
            "--workspace-mib",
        ],
        "miles bench packing": ["--json", "--samples", "--sent"],
        "miles bench pbox": [
            "--cycles",
            "--image-dir",
            "--json",
            "--platform",
            "--repeats",
            "--sandboxes",
        ],
        "miles bench reshard": ["--folder", "--gigabytes", "--json", "--without-materialising"],
        "miles bench request-routing": ["--json", "--rollouts", "--servers"],
        "miles bench router-replay": [
            "--experts",
            "--held",
            "--json",
            "--layers",
            "--new",
            "--repeats",
            "--top-k",
        ],
    }


def test_the_names_of_pbox_are_these():
    assert pbox.__all__ == [
        "Box",
        "Exited",
        "Host",
        "InfrastructureFailure",
        "Killed",
        "Limits",
        "OutOfMemory",
        "OutputTruncated",
        "Result",
        "SandboxGone",
        "TimedOut",
        "connect",
        "connect_blocking",
        "rollout_box",
    ]
    assert all(getattr(pbox, name) for name in pbox.__all__)


def test_the_exit_statuses_are_these():
    assert (USAGE_STATUS, ROLL_CALL_STATUS, ENDED_STATUS) == (2, 3, 70)


def test_the_environment_variables_are_these():
    names = (GATE, RUN_ID, ENVIRONMENT_PREFIX)
    assert names == ("MILES_PERIODIC", "MILES_PERIODIC_RUN_ID", "MILES_PERIODIC_SET__")


def test_the_entry_point_group_and_the_schema_of_the_plan_are_these():
    assert (FEATURE_GROUP, SCHEMA) == ("miles_periodic.features", 1)
