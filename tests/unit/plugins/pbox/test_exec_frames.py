"""What a command writes, on its way to a client that may not read it."""

import asyncio
import json
from collections import Counter

from miles_periodic.plugins.pbox.agent import commands
from miles_periodic.plugins.pbox.outcomes import Exited
from miles_periodic.plugins.pbox.wire import FAILURE, RESULT, FrameReader


class Writer:
    """A sandbox whose command writes without end, or once."""

    lives = True

    def __init__(self, num_pieces):
        self.num_pieces, self.was_ended = num_pieces, False

    async def execute(self, order, write, stdin):
        try:
            for _ in range(self.num_pieces):
                write("stdout", b"x" * 1000)
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.was_ended = True
            raise
        return Exited(0), 0.1


class Reader:
    """A client that reads all there is."""

    def __init__(self):
        self.frames, self.kinds = FrameReader(), []

    async def write(self, data):
        self.kinds += list(self.frames.feed(data))


class NoInput:
    async def iter_any(self):
        return
        yield


def ran(sandbox, unread):
    """The frames of a command that was not read before its end."""

    async def run():
        frames, reader = commands._Frames(unread, "job"), Reader()
        await commands._run(sandbox, None, NoInput(), frames)
        await frames.write_to(reader)
        return reader.kinds

    return asyncio.run(run())


def test_a_command_whose_client_does_not_read_ends_before_it_fills_the_agent(monkeypatch):
    monkeypatch.setattr(commands, "MAX_UNREAD_BYTES", 10_000)
    sandbox, unread = Writer(10**6), Counter()
    *written, (kind, failure) = ran(sandbox, unread)
    assert (kind, sandbox.was_ended, len(written)) == (FAILURE, True, 10)
    assert "lower output limits" in json.loads(failure)["remedy"]
    assert unread["job"] == 0


def test_what_one_job_does_not_read_is_not_anothers_to_pay_for(monkeypatch):
    monkeypatch.setattr(commands, "MAX_UNREAD_BYTES", 10_000)
    *_, (kind, _) = ran(Writer(5), Counter(other=10**9))
    assert kind == RESULT
