"""Clients that ask for too much, send too much or nothing, and a node that loses its files."""

import asyncio
import contextlib
import os
import shutil
import socket

import pytest
from pbox_agent import agent, nothing_is_left
from pbox_image import base_image

from miles_periodic.plugins.pbox import Exited, InfrastructureFailure, Limits, connect

pytestmark = pytest.mark.real
MIB = 1 << 20
MAX_SANDBOXES = 3
#: More than wait to be taken where nobody says how many may.
NUM_IDLE = 500


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    base_image()
    options = ("--max-sandboxes", str(MAX_SANDBOXES), "--warm", "base=2")
    with agent(tmp_path_factory.mktemp("pressure"), *options, is_proved=False) as started:
        yield started


def test_connections_on_which_nothing_comes_keep_nobody_out(running):
    with contextlib.ExitStack() as held:
        for _ in range(NUM_IDLE):
            idle = held.enter_context(socket.socket(socket.AF_UNIX))
            idle.connect(running.address.removeprefix("unix:"))
        with running.connect() as host, host.sandbox() as box:
            assert box.exec(["true"]).ok


def test_sandboxes_claimed_together_are_never_more_than_may_be(running):
    async def claim(number):
        async with connect(running.address, token_file=running.token_file) as host:
            claims = (host.start() for _ in range(number))
            claimed = await asyncio.gather(*claims, return_exceptions=True)
            boxes = [box for box in claimed if not isinstance(box, Exception)]
            ends = [(await box.exec(["true"])).outcome for box in boxes]
            return ends, set(claimed) - set(boxes), (await host.node())["num_sandboxes"]

    ends, refused, num_held = asyncio.run(claim(200))
    assert set(ends) == {Exited(0)} and len(ends) <= MAX_SANDBOXES >= num_held
    assert all(isinstance(each, InfrastructureFailure) for each in refused)
    assert all("--max-sandboxes" in str(each) for each in refused)


def test_an_input_larger_than_the_sandbox_reaches_a_command_that_is_slow_to_read_it(running):
    limits = Limits(memory_bytes=96 * MIB)
    with running.connect() as host, host.sandbox(limits=limits) as box:
        data = b"x" * (128 * MIB)
        result = box.exec(["sh", "-c", "sleep 1; wc -c"], stdin=data, timeout_seconds=600)
    assert (result.outcome, result.stdout) == (Exited(0), b"%d\n" % (128 * MIB))


def test_a_node_that_lost_its_files_fails_as_infrastructure_and_goes_on(running):
    with running.connect() as host, host.sandbox() as box:
        for path in (running.state / "sandboxes" / box.name).iterdir():
            with contextlib.suppress(OSError):  # what is mounted there stays
                shutil.rmtree(path) if path.is_dir() else os.unlink(path)
        with pytest.raises(InfrastructureFailure, match="gone from the node"):
            box.write_text("note", "x")
        with host.sandbox() as another:
            assert another.exec(["true"]).ok


def test_a_state_folder_that_is_removed_under_an_agent_is_made_again(tmp_path):
    with agent(tmp_path / "removed", is_proved=False) as running:
        shutil.rmtree(running.state)
        with running.connect() as host, host.sandbox() as box:
            assert box.exec(["true"]).ok
        nothing_is_left(running.folder, 60)
