"""Ports of servers to be: drawn once each, in this process and beside it."""

import socket
import subprocess
import sys

import pytest

from miles_periodic.compat.cpu import free_port as module
from miles_periodic.compat.cpu.environment import LOOPBACK
from miles_periodic.hooks.errors import PeriodicError


@pytest.fixture
def mine():
    """Ports between one that this process holds and the next that is ever drawn."""
    first = module.free_port()
    return [first + 1, first + 2, first + 4, first + 5]


@pytest.fixture
def draws_from(monkeypatch):
    return lambda *ports: monkeypatch.setattr(module, "PORTS", ports)


def test_no_port_is_returned_twice_before_anything_listens_on_it(draws_from, mine):
    draws_from(*mine)
    assert sorted(module.free_port() for _ in mine) == mine


def test_another_process_is_not_given_it_either(draws_from, mine):
    port = mine[0]
    draws_from(port)
    assert module.free_port() == port
    code = (
        "from miles_periodic.compat.cpu import free_port as module\n"
        f"module.PORTS = [{port}]\n"
        "module.free_port()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "No port is free" in done.stderr


def test_a_port_on_which_something_listens_is_none(draws_from, mine):
    draws_from(mine[0])
    with (
        socket.create_server((LOOPBACK, mine[0])),
        pytest.raises(PeriodicError, match="End some"),
    ):
        module.free_port()


def test_grpcs_port_of_every_one_lies_below_those_of_connections():
    assert min(module.PORTS) >= 20_000 and max(module.PORTS) + 10_000 < 32_768
