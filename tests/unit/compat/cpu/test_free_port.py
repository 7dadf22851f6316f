"""Ports of servers to be: drawn once each, in this process and beside it."""

import socket
import subprocess
import sys

import pytest

from miles_periodic.compat.cpu import free_port as module
from miles_periodic.compat.cpu.environment import LOOPBACK
from miles_periodic.hooks.errors import PeriodicError

#: Above the ports that the module draws from: each of these is claimed by one test, for good.
ALONE = range(22_730, 22_734)
ELSEWHERE = 22_734
LISTENING = 22_735


@pytest.fixture
def draws_from(monkeypatch):
    return lambda *ports: monkeypatch.setattr(module, "PORTS", ports)


def test_no_port_is_returned_twice_before_anything_listens_on_it(draws_from):
    draws_from(*ALONE)
    assert sorted(module.free_port() for _ in ALONE) == list(ALONE)


def test_another_process_is_not_given_it_either(draws_from):
    draws_from(ELSEWHERE)
    assert module.free_port() == ELSEWHERE
    code = (
        "from miles_periodic.compat.cpu import free_port as module\n"
        f"module.PORTS = [{ELSEWHERE}]\n"
        "module.free_port()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "No port is free" in done.stderr


def test_a_port_on_which_something_listens_is_none(draws_from):
    draws_from(LISTENING)
    with (
        socket.create_server((LOOPBACK, LISTENING)),
        pytest.raises(PeriodicError, match="End some"),
    ):
        module.free_port()


def test_grpcs_port_of_every_one_lies_below_those_of_connections():
    assert min(module.PORTS) >= 20_000 and max(module.PORTS) + 10_000 < 32_768
