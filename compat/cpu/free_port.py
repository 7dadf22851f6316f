"""Ports for servers that take seconds to listen on theirs, no two of them alike."""

from __future__ import annotations

import random
import socket
from contextlib import closing

from miles_periodic.compat.cpu.environment import LOOPBACK
from miles_periodic.hooks.errors import PeriodicError

#: Where ports are looked for. SGLang takes the port 10,000 above its own for gRPC: both below those
#: that the kernel gives to connections, above those of Ray's workers.
PORTS = range(20_000, 22_700, 7)


def free_port() -> int:
    """A TCP port on which nothing listens, and that no other call here or elsewhere has returned.

    A server listens long after its port was chosen, so the UDP port of the same number, which no
    server of ours uses, is held until this process ends: whoever chooses next sees that. Raises
    PeriodicError where none is left.
    """
    for port in random.sample(PORTS, len(PORTS)):
        claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            claim.bind((LOOPBACK, port))
        except OSError:
            claim.close()
            continue
        with closing(socket.socket()) as probe:
            if probe.connect_ex((LOOPBACK, port)):
                claim.detach()
                return port
        claim.close()
    raise PeriodicError(
        "No port is free.", expected=f"one of {PORTS}", remedy="End some of the servers here."
    )
