"""Commands that are ended from outside: through every clean-up, and with a word of what is left."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from miles_periodic.cli import messages


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
