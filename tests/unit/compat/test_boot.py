"""A process of a run: what the boot line does to it, seen from the launcher's roll call."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from miles_periodic.compat.binding import Binding
from miles_periodic.compat.manifest import GATE, RunManifest
from miles_periodic.compat.roll_call.server import RollCallServer

DOUBLE = Binding(
    name="toy/double",
    upstream="miles",
    target="toy_upstream:increment",
    adapter="toy_adapter:double",
    processes=("process",),
)


@pytest.fixture
def toy(tmp_path):
    (tmp_path / "toy_upstream.py").write_text("def increment(x):\n    return x + 1\n")
    (tmp_path / "toy_adapter.py").write_text(
        "def double(wrapped, instance, args, kwargs):\n    return 2 * wrapped(*args, **kwargs)\n"
    )
    return tmp_path


@pytest.fixture
def roll_call():
    with RollCallServer([DOUBLE], run_id="run") as server:
        yield server


def path_of(toy):
    return os.pathsep.join([str(toy), *filter(None, [os.environ.get("PYTHONPATH")])])


def run(toy, roll_call, code, *, bindings=(DOUBLE,), address=None, **environment):
    manifest = RunManifest("run", address or roll_call.address, roll_call.token, (), bindings)
    variables = {**os.environ, **manifest.environment(), "PYTHONPATH": path_of(toy), **environment}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=variables, **pipes) as child:
        output, errors = child.communicate(timeout=120)
    roll_call.hear_out(child.pid)
    return subprocess.CompletedProcess(command, child.returncode, output, errors)


def test_a_binding_is_applied_right_after_its_module_executed(toy, roll_call):
    done = run(toy, roll_call, "from toy_upstream import increment; print(increment(1))")
    assert done.stdout == "4\n", done.stderr
    (row,) = roll_call.roll.rows()
    assert row["applied"] == ["toy/double"]
    assert roll_call.roll.missing() == []


def test_a_consulted_binding_is_counted_even_by_a_process_that_ends_at_once(toy, roll_call):
    run(toy, roll_call, "import toy_upstream as t; t.increment(1); t.increment(1)")
    assert roll_call.roll.rows()[0]["consulted"] == {"toy/double": 2}


def test_a_process_that_imports_no_target_is_left_alone(toy, roll_call):
    done = run(toy, roll_call, "import sys; print('toy_upstream' in sys.modules)")
    assert (done.returncode, done.stdout) == (0, "False\n")
    assert roll_call.roll.rows() == []


def test_a_missing_target_ends_the_process_and_names_it(toy, roll_call):
    (toy / "toy_upstream.py").write_text("def other(): ...\n")
    done = run(toy, roll_call, "import toy_upstream; print('computed')")
    assert done.returncode == 70 and "computed" not in done.stdout
    assert roll_call.failed.wait(60)
    assert "toy/double" in str(roll_call.roll.failures[0])


def test_a_binding_that_somebody_replaced_ends_the_process(toy, roll_call):
    code = "import time, toy_upstream; toy_upstream.increment = len; time.sleep(100)"
    assert run(toy, roll_call, code).returncode == 70
    assert "replaced" in roll_call.roll.failures[0].reason


@pytest.mark.parametrize("upstream", ["def increment(x): ...\n", "def other(): ...\n"])
def test_a_process_says_why_it_ends_before_it_tells_the_launcher_that_kills_it(
    toy, roll_call, monkeypatch, upstream
):
    def kill(failure):
        os.kill(roll_call.roll.entries[0].pid, signal.SIGKILL)

    monkeypatch.setattr(roll_call, "fail", kill)
    (toy / "toy_upstream.py").write_text(upstream)
    code = "import time, toy_upstream; toy_upstream.increment = len; time.sleep(100)"
    done = run(toy, roll_call, code)
    said = [line for line in done.stderr.splitlines(keepends=True) if "toy/double" in line]
    assert len(said) == 1 and said[0].endswith("\n"), done


def test_a_binding_under_somebody_elses_wrapper_is_still_in_place(toy, roll_call):
    code = """
        import functools, time, toy_upstream
        ours = toy_upstream.increment
        @functools.wraps(ours)
        def theirs(x):
            return ours(x)
        toy_upstream.increment = theirs
        time.sleep(2.5)
        print(toy_upstream.increment(1))
    """
    assert run(toy, roll_call, code).stdout == "4\n"
    assert not roll_call.roll.failures


def test_an_import_hook_that_was_taken_out_in_one_process_is_found(toy, roll_call):
    code = """
        import sys, time
        sys.meta_path[:] = [f for f in sys.meta_path if "wrapt" not in type(f).__module__]
        import toy_upstream
        time.sleep(100)
    """
    assert run(toy, roll_call, code).returncode == 70
    assert "was not applied" in roll_call.roll.failures[0].reason


def test_a_forked_child_answers_the_roll_call_itself(toy, roll_call):
    code = """
        import os, time, toy_upstream
        child = os.fork()
        toy_upstream.increment(1)
        time.sleep(2.5)
        if child:
            os.waitpid(child, 0)
    """
    run(toy, roll_call, code)
    assert len({row["pid"] for row in roll_call.roll.rows()}) == 2


def test_a_process_with_a_binding_that_cannot_reach_the_roll_call_stops(toy, roll_call):
    done = run(toy, roll_call, "import toy_upstream; print('computed')", address="127.0.0.1:9")
    assert done.returncode == 70 and "computed" not in done.stdout
    assert "cannot be reached" in done.stderr


def test_a_process_without_a_binding_needs_no_roll_call(toy, roll_call):
    assert run(toy, roll_call, "print('ok')", address="127.0.0.1:9").stdout == "ok\n"


def test_a_gate_that_is_no_manifest_ends_the_process(toy, roll_call):
    done = run(toy, roll_call, "print('computed')", **{GATE: "nonsense"})
    assert done.returncode == 70 and "no manifest" in done.stderr


def test_the_gate_unset_imports_nothing_of_ours(toy):
    code = "import sys; print([m for m in sys.modules if m.startswith(('miles', 'wrapt'))])"
    environment = {k: v for k, v in os.environ.items() if k != GATE}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "[]\n"


def test_a_process_with_a_binding_stops_when_the_launcher_is_gone(toy):
    with RollCallServer([DOUBLE], run_id="run") as short_lived:
        manifest = RunManifest("run", short_lived.address, short_lived.token, (), (DOUBLE,))
        child = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import toy_upstream, time; print('up', flush=True); time.sleep(100)",
            ],
            env={**os.environ, **manifest.environment(), "PYTHONPATH": path_of(toy)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        child.stdout.readline()
    _, errors = child.communicate(timeout=120)
    assert child.returncode == 70 and "launcher is gone" in errors


@pytest.mark.parametrize("begin", ["os.fork() and os._exit(0)", "pass"], ids=["forked", "started"])
def test_a_process_that_begins_while_the_launcher_ends_stops_too_where_all_do(toy, begin):
    with RollCallServer([DOUBLE], run_id="run") as short_lived:
        manifest = RunManifest(
            *("run", short_lived.address, short_lived.token, (), ()), ends_with_launcher=True
        )
    code = f"import os, time; {begin}; time.sleep(100); print('went on')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **manifest.environment()},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "launcher is gone" in done.stderr and "went on" not in done.stdout


def test_a_process_that_cannot_join_its_run_stops(toy, roll_call):
    done = run(toy, roll_call, "print('computed without bindings')", address="no port")
    assert (done.returncode, done.stdout) == (70, "")
    assert "cannot join its run" in done.stderr
