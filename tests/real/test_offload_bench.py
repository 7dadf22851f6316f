"""`miles bench offload --megatron` steps a real Megatron's optimizer three ways on the CPU."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.real

PERIODIC = "from miles_periodic.cli.main import main; main()"


@pytest.fixture(scope="module")
def result(unpacked):
    tree = unpacked("megatron-core", "0.19.2", "3.12")
    command = [sys.executable, "-W", "ignore", "-c", PERIODIC, "bench", "offload"]
    command += ["--parameters", "300000", "--workspace-mib", "1", "--steps", "1", "--json"]
    done = subprocess.run(
        [*command, "--megatron", str(tree)], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_offloaded_step_makes_the_native_steps_weights_within_the_workspace(result):
    assert result["goals"] == "met" and result["megatron_weights_equal"]
    rows = {row["optimizer"]: row for row in result["rows"]}
    native = rows["Megatron, all on device"]["state_on_device_mib"]
    offloaded = rows["Megatron, chunked-optimizer-offload"]["state_on_device_mib"]
    assert offloaded <= 1 < native


def test_what_needs_a_gpu_is_left_out_without_one(result):
    assert not [row for row in result["rows"] if "Hybrid" in row["optimizer"]]
    assert "times_faster_than_hybrid" not in result
