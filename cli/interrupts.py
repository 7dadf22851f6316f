"""Commands that are ended from outside: through every clean-up, and with a word of what is left."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import typer

from miles_periodic.cli import messages

#: How long a signal may wait that came while its handler could not run.
LOOK_SECONDS = 1.0


@contextmanager
def interruptible(said: str) -> Iterator[None]:
    """SIGTERM and SIGHUP end what is inside the way Ctrl-C does; then `said`, and status 130.

    One that is ignored, as `nohup` has it, stays so.
    """

    def stop(number, frame):
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP)
    heeded = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in heeded}
    try:
        yield
    except KeyboardInterrupt:
        messages.say("interrupted", said, "yellow")
        raise typer.Exit(130) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_of(child: subprocess.Popen) -> int:
    """A child's exit status, once it has ended; handlers of signals run meanwhile.

    Python runs a handler between two of its own steps: of a signal that comes right before a wait
    without a limit, it would run when that wait is over.
    """
    while child.returncode is None:
        with suppress(subprocess.TimeoutExpired):
            child.wait(LOOK_SECONDS)
    return child.returncode
