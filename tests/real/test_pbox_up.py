"""A job's command with sandboxes beside it, on CPUs of their own."""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from becoming import becomes
from pbox_agent import IMAGES, PLATFORM
from pbox_image import base_image

pytestmark = pytest.mark.real
PERIODIC = [sys.executable, "-c", "from miles_periodic.cli.main import main; main()"]
UP = [*PERIODIC, "pbox", "up", "--image-dir", str(IMAGES), "--platform", PLATFORM]
JOB = """
import json, os, sys, time
from miles_periodic.plugins.pbox.client.blocking import connect_blocking

with connect_blocking() as host, host.sandbox() as box:
    print(json.dumps({
        "mine": sorted(os.sched_getaffinity(0)),
        "sandboxes": host.node()["cpus"],
        "said": box.exec(["echo", "hi"]).stdout.decode(),
        "folder": os.environ["PBOX_TOKEN_FILE"].rpartition("/")[0],
    }), flush=True)
    time.sleep(float(sys.argv[1]))
sys.exit(7)
"""


@pytest.fixture(scope="module", autouse=True)
def image():
    assert len(os.sched_getaffinity(0)) >= 2, "a split needs two CPUs: run this on two or more"
    base_image()


@contextlib.contextmanager
def job(seconds):
    process = subprocess.Popen(
        [*UP, "--", sys.executable, "-c", JOB, str(seconds)],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        readable, _, _ = select.select([process.stdout], [], [], 240)
        yield process, json.loads(process.stdout.readline() if readable else "{}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def nothing_is_left(folder):
    name = Path(folder).name

    def left():
        groups = [*Path("/sys/fs/cgroup").glob(f"pbox-{name}"),
                  *Path("/sys/fs/cgroup").glob(f"*/pbox-{name}")]  # fmt: skip
        mounts = re.findall(re.escape(f"{folder}/"), Path("/proc/self/mountinfo").read_text())
        return [*groups, *mounts, *([folder] if Path(folder).exists() else [])]

    becomes(lambda: not left())
    assert left() == []


def test_a_job_that_slurm_tells_to_stop_leaves_nothing():
    with job(600) as (process, facts):
        process.terminate()
        assert process.wait(120) == 128 + signal.SIGTERM
        nothing_is_left(facts["folder"])


def test_a_command_and_its_sandboxes_have_cpus_of_their_own_and_a_killed_job_leaves_nothing():
    with job(600) as (process, facts):
        sandboxes = {int(cpu) for cpu in facts["sandboxes"].split(",")}
        assert facts["said"] == "hi\n"
        assert set(facts["mine"]).isdisjoint(sandboxes)
        assert set(facts["mine"]) | sandboxes == os.sched_getaffinity(0)
        os.killpg(process.pid, signal.SIGKILL)
        nothing_is_left(facts["folder"])


def test_more_cpus_than_the_job_has_are_refused_before_anything_starts():
    done = subprocess.run(
        [*UP, "--sandbox-cpus", "4096", "--", "true"], capture_output=True, text=True, timeout=180
    )
    assert (done.returncode, "--cpus-per-task" in done.stderr) == (2, True)
