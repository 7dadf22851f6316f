"""Scripts under the launcher, with the real Miles and the real Ray."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from miles_periodic.compat.cpu.environment import cpu_environment
from miles_periodic.compat.cpu.free_port import free_port

pytestmark = pytest.mark.real

BIN = Path(sys.executable).parent
LOOK = """
import os, ray
ray.init({address}, runtime_env={{"env_vars": {{"MINE": "1"}}}})
@ray.remote
def look():
    import miles.utils.http_utils as http
    return hasattr(http.post, "__wrapped__"), os.environ.get("MINE")
print("worker", *ray.get(look.remote()))
"""


def launch(script, *arguments, name="periodic", plugins="periodic:kv-preservation", **environment):
    return subprocess.run(
        [BIN / name, "--plugins", plugins, script, *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=script.parent,
        env={**os.environ, **cpu_environment(), **environment},
    )


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "script.py"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def cluster(tmp_path):
    """The address of a Ray that was started before, and without, any run of ours."""
    environment = {**os.environ, **cpu_environment(), "RAY_AUTH_MODE": "disabled"}
    folder = Path(tempfile.gettempdir()) / f"mp-ray-{os.getpid()}"
    port = free_port()
    options = ["--head", "--block", f"--port={port}", "--num-cpus=1", "--include-dashboard=false"]
    options += [f"--temp-dir={folder}", "--node-ip-address=127.0.0.1", "--disable-usage-stats"]
    head = subprocess.Popen(
        [BIN / "ray", "start", *options],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    yield f"127.0.0.1:{port}"
    os.killpg(head.pid, signal.SIGTERM)
    head.wait(240)
    shutil.rmtree(folder, ignore_errors=True)


def test_the_gate_reaches_the_workers_of_a_ray_that_a_script_starts(script):
    done = launch(script(LOOK.format(address="'local', num_cpus=1, include_dashboard=False")))
    assert "worker True 1" in done.stdout, done.stderr


def test_the_gate_reaches_the_workers_of_a_ray_that_was_there_before(script, cluster):
    text = LOOK.format(address=f"address={cluster!r}")
    end = time.monotonic() + 400
    while "worker" not in (done := launch(script(text), RAY_AUTH_MODE="disabled")).stdout:
        assert time.monotonic() < end, done.stderr
    assert "worker True 1" in done.stdout


def test_a_script_that_never_comes_to_miles_fails_the_roll_call(script):
    done = launch(script("print('done')"))
    assert done.returncode == 3 and "was not applied in any driver" in done.stderr


def test_a_script_that_ends_before_the_servers_are_up_is_no_failure_but_is_told_so(script):
    done = launch(script("import miles.utils.arguments"))
    assert done.returncode == 0 and "no feature did anything" in done.stderr


def test_the_alias_survives_miless_pkill(script):
    text = "import subprocess; subprocess.run(['pkill', '-9', 'miles']); print('alive')"
    done = launch(script(text), name="miles")
    assert done.returncode == 3 and done.stdout == "alive\n"


def test_an_interrupt_reaches_the_script_and_its_status_comes_back(script):
    text = """
import signal, sys, time
signal.signal(signal.SIGINT, lambda *_: sys.exit(9))
print("up", flush=True)
time.sleep(600)
"""
    command = [BIN / "periodic", "--plugins", "periodic:kv-preservation", script(text)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "up\n"
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=300)
    assert child.returncode == 9


def test_a_feature_that_cannot_be_had_stops_the_launch_before_anything_starts(script, tmp_path):
    target = "miles/utils/http_utils.py"
    shadow = tmp_path / "shadow"
    _copy_package("miles", shadow)
    path = shadow / target
    path.write_text(
        path.read_text().replace("async def post(url, payload,", "async def post(u, p,")
    )
    done = launch(script("print('started')"), PYTHONPATH=str(shadow))
    assert done.returncode == 2 and "started" not in done.stdout
    for part in ("kv-preservation", "miles.utils.http_utils:post", "expected", "remedy"):
        assert part in done.stderr


def _copy_package(name, folder):
    import importlib.util

    source = Path(importlib.util.find_spec(name).origin).parent
    shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
