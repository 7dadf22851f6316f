"""What a train actor refuses to start with."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from miles_periodic.compat.cpu.stand_in import StandIn, replace

ACCEPTED_NUMPY = "1.26.4"


class _OlderNumpy:
    """numpy, but for the version it reports."""

    __version__ = ACCEPTED_NUMPY

    def __init__(self, numpy: ModuleType) -> None:
        self._numpy = numpy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._numpy, name)


def numpy_two_is_fine(initialize: ModuleType) -> None:
    """Let the trainer start with numpy 2.

    Symptom: "Megatron does not support numpy 2.x". Trigger:
    miles/backends/megatron_utils/initialize.py:72, while the other parts of the same wheel resolve
    to numpy 2. Safe: the Megatron of the wheel has no use of a name that numpy 2 removed on this
    path; only this module sees the older version.
    """
    replace(initialize, "np", _OlderNumpy)


def plain_process_groups(reloadable: ModuleType) -> None:
    """Leave torch's process groups as they are.

    Symptom: with two train actors, "No backend type associated with device type cpu". Trigger:
    miles/utils/reloadable_process_group.py wraps every group of more than one rank and forwards
    the methods of an older torch; 2.14 calls others. Safe: the wrapper exists so that
    --offload-train can drop NCCL's buffers, which gloo does not have.
    """
    replace(reloadable, "monkey_patch_torch_dist", lambda native: lambda: None)


STAND_INS = (
    StandIn(
        name="trainer-start/numpy",
        module="miles.backends.megatron_utils.initialize",
        apply=numpy_two_is_fine,
        why="Miles asserts numpy 1 where the wheel's other parts bring numpy 2.",
        process="trainer",
    ),
    StandIn(
        name="trainer-start/process-groups",
        module="miles.utils.reloadable_process_group",
        apply=plain_process_groups,
        why="Miles's wrapper of process groups does not forward what torch 2.14 calls.",
        process="trainer",
    ),
)
