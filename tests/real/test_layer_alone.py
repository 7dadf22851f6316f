"""The layer with every feature off changes no byte of what is trained on."""

import os
import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.real

#: The CPU's stand-ins without the layer: no gate, no boot, no roll call, no meter, no binding.
STAND_INS_ALONE = """
import os
if os.environ.get("STAND_INS_ALONE"):
    from miles_periodic.compat.cpu import boot
    def fail(name, error):
        raise error
    boot.register("miles_periodic.compat.cpu.catalog:STAND_INS", fail)
"""


@pytest.fixture(scope="module")
def without_the_layer(rehearsal, tmp_path_factory):
    """A folder in which the same run left its data, started without this project's gate."""
    from miles_periodic.cli.rehearsal.workspace import workspace
    from miles_periodic.compat.cpu import game
    from miles_periodic.compat.cpu.environment import cpu_environment
    from miles_periodic.compat.cpu.flags import CpuRun, miles_flags, prompts_file

    folder = tmp_path_factory.mktemp("without")
    (folder / "sitecustomize.py").write_text(STAND_INS_ALONE, encoding="utf-8")
    shape = CpuRun(num_rollouts=2)
    game.write_prompts(prompts_file(folder), shape.num_prompts)
    flags = miles_flags(rehearsal.folder / "work" / "model", folder, shape)
    own = {"STAND_INS_ALONE": "1", "PYTHONPATH": str(folder), **cpu_environment()}
    with workspace(None) as space, open(folder / "run.log", "wb") as log:
        subprocess.run(
            [sys.executable, "-m", "miles_periodic.compat.cpu.run"]
            + [str(shape.num_gpus), str(space.ray), *flags],
            env={**os.environ, **own},
            cwd=folder,
            stdout=log,
            stderr=log,
            timeout=1200,
            check=True,
        )
    return folder


@pytest.mark.parametrize("rollout", [0, 1])
def test_rollouts_are_equal_to_the_byte_with_and_without_the_layer(
    rehearsal, without_the_layer, rollout
):
    ours = samples_of(rehearsal.folder / "work" / "off", rollout)
    theirs = samples_of(without_the_layer, rollout)
    assert len(ours) == len(theirs) == 16
    for mine, other in zip(ours, theirs, strict=True):
        for key in ("tokens", "rollout_log_probs", "loss_mask", "reward", "weight_versions"):
            assert mine[key] == other[key]
        routes = mine["rollout_routed_experts"], other["rollout_routed_experts"]
        assert routes[0].dtype == routes[1].dtype
        assert routes[0].tobytes() == routes[1].tobytes()


def samples_of(folder, rollout):
    saved = torch.load(folder / "rollout" / f"{rollout}.pt", weights_only=False)
    return sorted(saved["samples"], key=lambda sample: sample["index"])
