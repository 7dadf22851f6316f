"""The address that servers, trainers and process groups of a CPU run give each other."""

from __future__ import annotations

from types import ModuleType

from miles_periodic.compat.cpu.environment import LOOPBACK
from miles_periodic.compat.cpu.stand_in import StandIn, replace


def node_is_loopback(services: ModuleType) -> None:
    """Answer Ray's question for this node's address with the loopback address.

    Symptom: SGLang servers and weight update groups listen on the machine's network address.
    Trigger: miles/utils/misc.py:161 and update_weight_from_distributed/broadcast.py:116 ask Ray,
    whose workers look for a route to the internet. Safe: the run's Ray instance
    (logical_gpus.ray_with_logical_gpus) is started on the loopback address and has one node.
    """
    replace(services, "get_node_ip_address", lambda native: lambda address=None: LOOPBACK)


STAND_INS = (
    StandIn(
        name="loopback/node-address",
        module="ray._private.services",
        apply=node_is_loopback,
        why="Miles's servers would listen to the network; a CPU run has one node.",
    ),
)
