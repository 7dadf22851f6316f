"""A process beside the agent that outlives it: when the agent is gone, it sweeps.

`python -m miles_periodic.plugins.pbox.node.undertaker STATE RUNSC PLATFORM GROUP`, with a pipe from
the agent as standard input. The pipe ends with the agent, however that ends.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import sh

from miles_periodic.plugins.pbox.node.place import place_of, remove_place
from miles_periodic.plugins.pbox.node.sandbox import Node
from miles_periodic.plugins.pbox.node.sweep import sweep


def start(state: Path, node: Node) -> int:
    """Start it; the descriptor that it watches: it begins when that is closed."""
    watched, held = os.pipe()
    arguments = [state, node.runsc.program, node.runsc.platform, node.cgroups.parent]
    with os.fdopen(watched, "rb") as stdin, open(os.devnull, "wb") as nothing:
        sh.Command(sys.executable)(
            "-m", __name__, *map(str, arguments),
            _in=stdin, _out=nothing, _err=nothing, _bg=True, _bg_exc=False, _new_session=True,
            _env=dict(os.environ) | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
    return held


def main(state: str, program: str, platform: str, group: str) -> None:
    """Wait for the agent's end, then leave nothing of it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # what ends the agent must not end this
    node = place_of(Path(state), program, platform, group)
    while os.read(0, 1):
        pass
    sweep(node)
    remove_place(Path(state), node)


if __name__ == "__main__":
    main(*sys.argv[1:])
