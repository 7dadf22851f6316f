"""The launcher's side: who is admitted, and what a broken line does."""

import dataclasses
import socket

import pytest

from miles_periodic.compat.binding import Binding
from miles_periodic.compat.roll_call import wire
from miles_periodic.compat.roll_call.server import RollCallServer
from miles_periodic.hooks.errors import RollCallError

#: From its word on, the kernel shows the process's own variables and title.
UP = "print('up', flush=True); input()"
BINDING = Binding("a/b", "miles", "x:y", "m:f", processes=("trainer",))


@pytest.fixture
def server():
    with RollCallServer([BINDING], run_id="run", notify=lambda text: None) as listening:
        yield listening


def connect(server):
    host, port = server.address.split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def hello(server, **changes):
    parts = {
        "token": server.token,
        "run_id": "run",
        "host": "elsewhere",
        "pid": 7,
        "title": "ray::MegatronTrainRayActor",
    }
    return wire.pack(wire.HELLO, **{**parts, **changes})


def ask_muster(line, *roles):
    line.sendall(wire.pack(wire.MUSTER, roles=roles))
    return wire.unpack(line.makefile("rb").readline())["missing"]


def test_a_role_without_its_binding_is_missing_at_the_muster(server):
    with connect(server) as line:
        line.sendall(hello(server))
        assert ask_muster(line) == ["a/b was not applied in any trainer"]


def test_a_role_with_its_binding_is_not_missing(server):
    with connect(server) as line:
        line.sendall(hello(server) + wire.pack(wire.APPLIED, binding="a/b"))
        assert ask_muster(line) == []


def test_a_role_that_not_every_run_has_is_missing_only_where_the_driver_says_that_it_is_there():
    binding = Binding("a/session", "miles", "x:y", "m:f", processes=("session-server",))
    with RollCallServer([binding], run_id="run") as server, connect(server) as line:
        line.sendall(hello(server))
        assert ask_muster(line) == []
        assert ask_muster(line, "session-server") == [
            "a/session was not applied in any session-server"
        ]


def test_a_wrong_token_is_turned_away(server):
    with connect(server) as line:
        line.sendall(hello(server, token="guess"))
        assert line.recv(1) == b""
    assert server.roll.entries == []


@pytest.mark.parametrize("junk", [b"\xff\xfe\n", b"[]\n", b"{}\n", b"GET / HTTP/1.1\r\n\r\n"])
def test_junk_on_the_line_is_turned_away_and_the_server_goes_on(server, junk):
    with connect(server) as line:
        line.sendall(junk)
        assert line.recv(1) == b""
    with connect(server) as line:
        line.sendall(hello(server))
        ask_muster(line)
    assert len(server.roll.entries) == 1


def test_a_reported_failure_names_process_and_binding(server):
    with connect(server) as line:
        line.sendall(hello(server) + wire.pack(wire.FAILED, binding="a/b", reason="why"))
        assert server.failed.wait(60)
    (failure,) = server.roll.failures
    assert "a/b" in str(failure) and "trainer (pid 7 on elsewhere" in str(failure)


def test_a_binding_that_waits_for_something_rare_may_stay_silent(server):
    rare = dataclasses.replace(server.roll.bindings[0], only_when="a request is retracted")
    server.roll.bindings = (rare, *server.roll.bindings[1:])
    with connect(server) as line:
        line.sendall(hello(server) + wire.pack(wire.APPLIED, binding=rare.name))
        ask_muster(line)
    assert server.roll.never_consulted() == []


def test_a_binding_that_nobody_called_is_reported(server):
    with connect(server) as line:
        line.sendall(hello(server) + wire.pack(wire.APPLIED, binding="a/b"))
        ask_muster(line)
    assert server.roll.never_consulted() == ["a/b"]


def test_a_binding_consulted_in_one_process_was_consulted(server):
    with connect(server) as one, connect(server) as other:
        for line in (one, other):
            line.sendall(hello(server) + wire.pack(wire.APPLIED, binding="a/b"))
        other.sendall(wire.pack(wire.CONSULTED, counts={"a/b": 1}, title=""))
        for line in (one, other):
            ask_muster(line)
    assert server.roll.never_consulted() == []


def test_a_process_of_a_role_that_never_said_hello_is_found_in_the_process_table(server):
    import os
    import subprocess
    import sys

    from miles_periodic.compat.manifest import RUN_ID
    from miles_periodic.compat.roll_call.absent import absent_processes

    title = "ray::MegatronTrainRayActor"
    mute = subprocess.Popen(
        [title, "-S", "-c", UP],
        executable=sys.executable,
        env={**os.environ, RUN_ID: "run"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert mute.stdout.readline() == b"up\n"
        found = absent_processes(server)
        assert [pid for pid, _ in found] == [mute.pid]
    finally:
        mute.communicate(b"\n", timeout=120)


def test_the_launchers_own_child_is_found_whatever_its_title_shows():
    import os
    import subprocess
    import sys

    from miles_periodic.compat.manifest import RUN_ID
    from miles_periodic.compat.roll_call.absent import absent_processes

    binding = Binding("a/driver", "miles", "x:y", "m:f", processes=("driver",))
    with RollCallServer([binding], run_id="own") as server:
        environment = {**os.environ, RUN_ID: "own"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        mute = subprocess.Popen([sys.executable, "-S", "-c", UP], env=environment, **pipes)
        try:
            assert mute.stdout.readline() == b"up\n"
            assert absent_processes(server) == []
            server.roll.driver_pid = mute.pid
            assert [pid for pid, _ in absent_processes(server)] == [mute.pid]
        finally:
            mute.communicate(b"\n", timeout=120)


def test_a_run_that_no_process_joined_says_that_the_boot_line_did_not_run(server):
    with pytest.raises(RollCallError, match="nothing was bound in any"):
        server.require_joined(patience_seconds=0.0)


def test_a_binding_that_no_process_applied_is_named(server):
    with connect(server) as line:
        line.sendall(hello(server))
        ask_muster(line)
        server.require_joined()
        with pytest.raises(RollCallError, match="Not in place in any process: a/b"):
            server.require_applied(patience_seconds=0.0)


def test_what_was_applied_a_moment_ago_is_waited_for(server):
    with connect(server) as line:
        line.sendall(hello(server) + wire.pack(wire.APPLIED, binding="a/b"))
        server.require_applied()


def test_an_ended_process_is_heard_out_to_its_last_word(server):
    with connect(server) as line:
        line.sendall(hello(server, host=socket.gethostname()))
        for count in range(2000):
            line.sendall(wire.pack(wire.CONSULTED, counts={"a/b": count}, title=""))
    server.hear_out(7)
    (entry,) = server.roll.entries
    assert not entry.alive and entry.consulted == {"a/b": 1999}


def test_of_an_ended_process_that_never_joined_nothing_is_waited_for(server):
    with connect(server) as line:
        line.sendall(hello(server))
        ask_muster(line)
        server.hear_out(8, patience_seconds=3600.0)
