"""Signals that end a command through its clean-ups, and one that was to be ignored."""

import signal
import subprocess

import pytest
import typer

from miles_periodic.cli.interrupts import end_of, interruptible


@pytest.fixture
def handled():
    """`handled(number, handler)`: how this process takes a signal, until the test's end."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield signal.signal
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_what_is_inside_and_says_what_is_left(number, handled, capfd):
    handled(number, signal.SIG_DFL)
    cleaned = []
    with pytest.raises(typer.Exit) as ended, interruptible("nothing was kept."):
        try:
            signal.raise_signal(number)
        finally:
            cleaned.append(number)
    assert ended.value.exit_code == 130 and cleaned == [number]
    assert "nothing was kept." in "".join(capfd.readouterr())
    assert signal.getsignal(number) == signal.SIG_DFL


def test_a_signal_that_nohup_has_ignored_stays_ignored(handled):
    handled(signal.SIGHUP, signal.SIG_IGN)
    with interruptible("nothing was kept."):
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


class BlockedChild:
    """A child whose end is waited for in calls in which no handler runs."""

    def __init__(self, num_calls):
        self.num_calls, self.returncode = num_calls, None

    def wait(self, timeout):
        self.num_calls -= 1
        if self.num_calls:
            raise subprocess.TimeoutExpired("child", timeout)
        self.returncode = 7


def test_a_child_is_waited_for_in_calls_that_end_so_that_handlers_run_between_them():
    assert end_of(BlockedChild(3)) == 7
