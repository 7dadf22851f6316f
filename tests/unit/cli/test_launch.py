"""The launcher's pure parts: the child's command and environment, and the verdict."""

import json
import os
import signal
import subprocess
import sys

import pytest
from becoming import becomes

from miles_periodic.cli.launch import (
    RAY_JOB_CONFIG,
    command_of,
    end_on_failure,
    first_on_path,
    run_environment,
    verdict,
)
from miles_periodic.compat.binding import Binding
from miles_periodic.compat.manifest import GATE, RUN_ID, RunManifest
from miles_periodic.compat.roll_call.roll import Failure
from miles_periodic.compat.roll_call.server import RollCallServer
from miles_periodic.compat.run_processes import processes_of
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.errors import PeriodicError

MANIFEST = RunManifest("run-1", "127.0.0.1:1", "token")
BINDING = Binding("a/b", "miles", "x:y", "m:f", processes=("driver",))


def test_a_script_is_run_by_this_python_with_its_arguments_untouched():
    command = command_of("train_async.py", ["--plugins", "x", "-h"])
    assert command == [sys.executable, "train_async.py", "--plugins", "x", "-h"]


def test_train_names_our_entry_where_no_such_file_exists(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command_of("train", ["--a"])[1:] == ["-m", "miles_periodic.compat.train", "--a"]
    (tmp_path / "train").write_text("")
    assert command_of("train", [])[1:] == ["train"]


def test_the_gate_reaches_ray_through_its_job_configuration():
    environment = run_environment(MANIFEST, {"HOME": "/h"})
    job = json.loads(environment[RAY_JOB_CONFIG])
    assert job["runtime_env"]["env_vars"][GATE] == environment[GATE]
    assert environment[RUN_ID] == "run-1" and environment["HOME"] == "/h"


def test_a_job_configuration_that_is_there_is_kept():
    before = {"metadata": {"a": "b"}, "runtime_env": {"env_vars": {"X": "1"}}}
    environment = run_environment(MANIFEST, {RAY_JOB_CONFIG: json.dumps(before)})
    job = json.loads(environment[RAY_JOB_CONFIG])
    assert job["metadata"] == {"a": "b"} and job["runtime_env"]["env_vars"]["X"] == "1"


@pytest.mark.parametrize("text", ["nonsense", "[]", '{"runtime_env": 3}'])
def test_a_broken_job_configuration_is_an_error(text):
    with pytest.raises(PeriodicError, match=RAY_JOB_CONFIG):
        run_environment(MANIFEST, {RAY_JOB_CONFIG: text})


@pytest.fixture
def roll_call():
    with RollCallServer([BINDING], run_id=f"test-{os.getpid()}") as server:
        yield server


def test_a_run_whose_binding_was_applied_nowhere_fails_even_if_the_script_did_not(roll_call):
    assert verdict(0, roll_call) == 3


def test_a_run_whose_python_never_ran_the_boot_line_is_told_how_to_install_it(roll_call, capsys):
    verdict(0, roll_call)
    said = "".join(capsys.readouterr())
    assert "Install miles-periodic with pip into the environment that runs" in " ".join(
        said.split()
    )


def test_a_failed_roll_call_decides_the_exit_status(roll_call):
    roll_call.fail(Failure("a/b", "trainer", "why"))
    assert verdict(0, roll_call) == 3


@pytest.mark.parametrize(("child", "status"), [(0, 0), (7, 7), (-15, 143)])
def test_the_scripts_own_status_is_passed_on(child, status):
    with RollCallServer([], run_id="none") as server:
        assert verdict(child, server) == status


def test_a_failure_ends_every_process_of_the_run(roll_call):
    environment = {**os.environ, RUN_ID: roll_call.run_id}
    sleeper = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    child = subprocess.Popen(
        [sys.executable, "-c", sleeper], env=environment, stdin=subprocess.PIPE
    )
    end_on_failure(roll_call, child)
    roll_call.fail(Failure("a/b", "trainer", "why"))
    child.wait(120)
    assert becomes(lambda: not processes_of(roll_call.run_id))
    child.stdin.close()


def test_a_terminal_that_closes_ends_the_script_too(tmp_path):
    waits = "import sys, time; print('up', flush=True); time.sleep(600)"
    launcher = (
        "import os, sys; from miles_periodic.cli.launch import supervise;"
        "from miles_periodic.compat.roll_call.server import RollCallServer;"
        f"command = [sys.executable, '-c', {waits!r}];"
        "run = RollCallServer([], run_id='hangup');"
        "run.__enter__(); sys.exit(supervise(command, os.environ, run))"
    )
    with subprocess.Popen([sys.executable, "-c", launcher], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGHUP)
        assert process.wait(120) == 128 + signal.SIGHUP


def test_the_plan_reads_the_package_next_to_the_script_as_the_script_will(tmp_path):
    (tmp_path / "miles").mkdir()
    (tmp_path / "miles" / "__init__.py").write_text("")
    (tmp_path / "train.py").write_text("import miles; print(miles.__path__[0])")
    script = str(tmp_path / "train.py")
    imported = subprocess.run(command_of(script, []), capture_output=True, text=True, check=True)
    tree = Tree.installed("miles", first_on_path(script))
    assert [str(portion) for portion in tree.portions] == [imported.stdout.strip()]


def test_our_own_entry_searches_the_current_folder_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert first_on_path("train") == tmp_path
