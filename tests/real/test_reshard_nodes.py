"""Conversions over two nodes of a Ray, each of which sees files of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest
from megatron_states import write_source
from small_models import CONFIG, state

pytestmark = pytest.mark.real

#: As root, and as anybody where the kernel lets users mount in a namespace of their own.
NAMESPACES = (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"])

KILLED = """
import sys, time
sys.path[:0] = sys.argv[5:]
from miles_periodic.plugins.fast_resharding import reshard

def stop(progress):
    if progress.done_bytes:
        print("halfway", flush=True)
        time.sleep(600)

source, target, model, address = sys.argv[1:5]
sizes = {"unit_bytes": 64, "task_bytes": 256, "workers": 4}
reshard(source, target, config=model, address=address, on_progress=stop, **sizes)
"""

DRIVER = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
root, killed = Path(sys.argv[1]), sys.argv[2]
sys.path[:0] = sys.argv[3:]
import ray
from small_models import CONFIG, same, state, written
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding import reshard

def mount(what, where):
    return f"mount --bind {root / what} {root / where}"

for what, where in (("shared", "everywhere"), ("first", "apart"), ("first-disk", "disk")):
    subprocess.run(mount(what, where), shell=True, check=True)
ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
gcs = ray.get_runtime_context().gcs_address
second = " && ".join([
    mount("second", "apart"),
    mount("second-disk", "disk"),
    f"exec {sys.executable} -m ray.scripts.scripts start --address={gcs} --num-cpus=2 --block"
    " --disable-usage-stats",
])
node = subprocess.Popen(
    ["unshare", "--mount", "sh", "-c", second], start_new_session=True,
    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
facts, sizes = {}, {"unit_bytes": 64, "task_bytes": 256, "workers": 4}

def attempt(name, source, target, **more):
    try:
        report = reshard(
            root / source, root / target, config=root / "model", verify=True, **(sizes | more))
        model = written(root / target)
        facts[name] = [same(model, state(CONFIG)), report.fetched_bytes, report.read_bytes]
        facts[f"{name} resumed bytes"] = report.resumed_bytes
    except PeriodicError as error:
        facts[name] = str(error)

try:
    for _ in range(1200):
        if sum(n["Alive"] for n in ray.nodes()) == 2:
            break
        time.sleep(0.1)
    attempt("shared", "everywhere", "shared-target")
    attempt("apart", "apart", "apart-target")
    places = [root / "apart", root / "killed-target", root / "model", gcs]
    with subprocess.Popen(
        [sys.executable, "-c", killed, *places, *sys.argv[3:]], stdout=subprocess.PIPE, text=True
    ) as driver:
        halfway = driver.stdout.readline()
        driver.kill()
    facts["killed"] = [halfway, (root / "killed-target").exists()]
    attempt("killed and resumed", "apart", "killed-target", resume=True)
    attempt("few", "apart", "few-target", workers=1)
    attempt("blind", "apart", "disk/target")
    os.utime(root / "second" / "__1_0.distcp", ns=(1, 1))
    (root / "first" / "__1_0.distcp").write_bytes((root / "second" / "__1_0.distcp").read_bytes())
    attempt("two files", "apart", "other-target")
    (root / "first" / "__1_0.distcp").unlink()
    (root / "second" / "__1_0.distcp").unlink()
    attempt("missing", "apart", "missing-target")
finally:
    os.killpg(node.pid, signal.SIGKILL)
    ray.shutdown()
print(json.dumps(facts))
"""


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    """What a driver on the first node found out; files 0 and 2 lie there, file 1 on the second."""
    root = tmp_path_factory.mktemp("nodes")
    for name in ("model", "first", "second", "apart", "everywhere"):
        (root / name).mkdir()
    for name in ("disk", "first-disk", "second-disk"):
        (root / name).mkdir()
    (root / "model" / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    write_source(root / "shared", state(CONFIG), groups=2)
    for path in (root / "shared").iterdir():
        where = "second" if path.name == "__1_0.distcp" else "first"
        os.link(path, root / where / path.name)
    lines = [path for path in sys.path if path.endswith("lines")]
    command = [*_namespace(), sys.executable, "-c", DRIVER, root, KILLED, *lines]
    # A node that is killed leaves its address where others without one would look for theirs.
    rays = tempfile.mkdtemp(prefix="rays-")
    process = subprocess.Popen(
        command,
        env={**os.environ, "RAY_TMPDIR": rays},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        told, errors = process.communicate(timeout=400)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        shutil.rmtree(rays, ignore_errors=True)
    assert process.returncode == 0, errors
    return json.loads(told.splitlines()[-1])


def _namespace():
    for words in NAMESPACES:
        if subprocess.run([*words, "true"], capture_output=True).returncode == 0:
            return words
    pytest.skip("this machine lets nobody mount a file system in a namespace")


def test_files_that_every_node_sees_are_read_where_they_are_worked_on(facts):
    same, fetched_bytes, _ = facts["shared"]
    assert same and fetched_bytes == 0


def test_files_that_one_node_each_holds_are_read_by_that_node(facts):
    same, fetched_bytes, read_bytes = facts["apart"]
    assert same and fetched_bytes < read_bytes / 2


def test_a_driver_that_is_killed_over_both_nodes_is_gone_on_with(facts):
    assert facts["killed"] == ["halfway\n", False]
    assert facts["killed and resumed"][0] and facts["killed and resumed resumed bytes"] > 0


def test_fewer_workers_than_nodes_that_hold_files_are_refused(facts):
    assert "lie on 2 nodes" in facts["few"] and "--workers 2 or more" in facts["few"]


def test_a_target_that_a_node_does_not_see_is_refused(facts):
    assert "not the same folder on every node" in facts["blind"]
    assert "Choose a target on a file system that all of them have" in facts["blind"]


def test_different_files_of_one_name_on_two_nodes_are_refused(facts):
    assert "different files by the name __1_0.distcp" in facts["two files"]


def test_a_file_that_no_node_sees_is_named(facts):
    assert "__1_0.distcp is missing" in facts["missing"]
