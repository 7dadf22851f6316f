"""What comes out of a sandbox is hostile: the node's end of its pipes."""

import asyncio
import os
import struct

import pytest

from miles_periodic.plugins.pbox.node.guest_channel import HEAD, MAX_FRAME_BYTES, open_channel


def frame(kind, number, payload=b""):
    return HEAD.pack(kind, number, len(payload)) + payload


def talk(scene):
    """Run `scene(channel, say, orders)` on a channel whose inside is the test."""

    async def play():
        (answers, say), (orders, given) = os.pipe(), os.pipe()
        channel = await open_channel(answers, given)
        try:
            return await asyncio.wait_for(
                scene(channel, lambda data: os.write(say, data), orders), timeout=120
            )
        finally:
            os.close(orders)
            channel.close()
            os.close(say)
            await asyncio.sleep(0)

    return asyncio.run(play())


def started(channel, limit=100):
    pieces = []
    running = channel.start(["true"], {}, "/work", 1000, limit, lambda *p: pieces.append(p))
    return running, pieces


def test_output_and_end_reach_the_command_that_they_are_of():
    async def scene(channel, say, orders):
        (one, written), (two, _) = started(channel), started(channel)
        say(frame(b"o", one.number, b"out") + frame(b"e", one.number, b"err"))
        say(frame(b"q", two.number, struct.pack("<i", 256)))
        assert await two.ended == 256
        return written, one.ended.done()

    assert talk(scene) == ([("stdout", b"out"), ("stderr", b"err")], False)


def test_no_more_is_kept_than_the_output_limit_whatever_the_inside_says():
    async def scene(channel, say, orders):
        running, written = started(channel, limit=10)
        say(frame(b"o", running.number, b"x" * 500) + frame(b"o", running.number, b"y" * 500))
        say(frame(b"q", running.number, struct.pack("<i", 0)))
        await running.ended
        return written, running.truncated

    assert talk(scene) == ([("stdout", b"x" * 10)], True)


@pytest.mark.parametrize("garbage", [
    frame(b"o", 99, b"nobody's"), frame(b"q", 99, b"\0\0\0\0"), frame(b"d", 7), frame(b"z", 1),
], ids=repr)  # fmt: skip
def test_what_is_of_no_command_is_passed_over(garbage):
    async def scene(channel, say, orders):
        running, _ = started(channel)
        say(garbage + frame(b"q", running.number, struct.pack("<i", 0)))
        return await running.ended, channel.lost.is_set()

    assert talk(scene) == (0, False)


@pytest.mark.parametrize("broken", [
    HEAD.pack(b"o", 1, MAX_FRAME_BYTES + 1), frame(b"q", 1, b"short"), frame(b"q", 1, b""),
], ids=repr)  # fmt: skip
def test_a_frame_that_breaks_the_form_ends_the_sandbox_and_wakes_who_waits(broken):
    async def scene(channel, say, orders):
        running, _ = started(channel)
        say(broken)
        with pytest.raises(ConnectionResetError):
            await running.ended
        await channel.lost.wait()
        with pytest.raises(ConnectionResetError):
            await channel.answer()

    talk(scene)


def test_an_errno_that_is_none_is_an_error_all_the_same():
    async def scene(channel, say, orders):
        running, _ = started(channel)
        say(frame(b"f", running.number, b"x" * 12))
        return await running.ended

    assert isinstance(talk(scene), OSError)


def test_frames_arrive_whole_however_they_are_cut():
    async def scene(channel, say, orders):
        running, written = started(channel)
        data = frame(b"o", running.number, b"piece") + frame(
            b"q", running.number, struct.pack("<i", 0)
        )
        for byte in data:
            say(bytes([byte]))
            await asyncio.sleep(0)
        await running.ended
        return written

    assert talk(scene) == [("stdout", b"piece")]
