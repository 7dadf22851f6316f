"""Servers of a CPU run listen and are asked on the loopback address only."""

from __future__ import annotations

from types import ModuleType

from miles_periodic.compat.cpu.environment import LOOPBACK
from miles_periodic.compat.cpu.stand_in import StandIn, replace


def node_is_loopback(misc: ModuleType) -> None:
    """Call this node 127.0.0.1.

    Symptom: SGLang's servers listen on the machine's outer address. Trigger:
    miles/utils/misc.py:160 asks Ray, which finds the address that leads to the internet. Safe: a
    rehearsal has one node.
    """
    replace(misc, "get_current_node_ip", lambda native: lambda: LOOPBACK)


STAND_INS = (
    StandIn(
        name="loopback/node-address",
        module="miles.utils.misc",
        apply=node_is_loopback,
        why="A rehearsal's servers must not be reachable from outside of this machine.",
    ),
)
