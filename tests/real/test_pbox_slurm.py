"""Jobs of a real Slurm with sandboxes: what srun, sbatch, scancel and preemption come to."""

import json
import os
import sys
from pathlib import Path

import pytest
from becoming import becomes
from pbox_agent import IMAGES, PLATFORM
from pbox_image import base_image
from slurm_cluster import cluster

pytestmark = pytest.mark.real
PERIODIC = [sys.executable, "-c", "from miles_periodic.cli.main import main; main()"]
UP = [*PERIODIC, "pbox", "up", "--image-dir", str(IMAGES), "--platform", PLATFORM, "--"]
PLACES = Path("/run/pbox")
JOB = """
import json, os, sys, time
from pathlib import Path
from miles_periodic.plugins.pbox.client.blocking import connect_blocking

with connect_blocking() as host, host.sandbox() as box:
    facts = {
        "mine": sorted(os.sched_getaffinity(0)),
        "sandboxes": host.node()["cpus"],
        "said": box.exec(["echo", "hi"]).stdout.decode(),
        "folder": os.environ["PBOX_TOKEN_FILE"].rpartition("/")[0],
    }
    Path(sys.argv[1] + ".part").write_text(json.dumps(facts))
    Path(sys.argv[1] + ".part").rename(sys.argv[1])
    time.sleep(float(sys.argv[2]))
sys.exit(7)
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    base_image()
    with cluster(tmp_path_factory.mktemp("slurm")) as run:
        yield run


def script(folder, seconds):
    """What a job runs, and the file in which it says how it went."""
    (folder / "job.py").write_text(JOB)
    words = [*UP, sys.executable, folder / "job.py", folder / "facts", str(seconds)]
    quoted = " ".join("'" + str(word) + "'" for word in words)
    (folder / "job.sh").write_text(f"#!/bin/sh\nexec {quoted}\n")
    (folder / "job.sh").chmod(0o755)
    return folder / "job.sh", folder / "facts"


def submitted(slurm, folder):
    """A batch job that runs, with its sandbox."""
    job, facts = script(folder, 600)
    words = ["sbatch", "--parsable", f"--cpus-per-task={os.cpu_count()}", "-o", folder / "out",
             job]  # fmt: skip
    number = slurm([*map(str, words)], check=True).stdout.strip()
    assert becomes(facts.exists, 240), (folder / "out").read_text()
    return number, json.loads(facts.read_text())


def is_gone(folder):
    name = Path(folder).name
    groups = [*Path("/sys/fs/cgroup").glob(f"pbox-{name}"),
              *Path("/sys/fs/cgroup").glob(f"*/pbox-{name}")]  # fmt: skip
    mounts = f"{folder}/" in Path("/proc/self/mountinfo").read_text()
    return not groups and not mounts and not Path(folder).exists()


def test_a_batch_job_that_is_cancelled_leaves_nothing(slurm, tmp_path):
    number, facts = submitted(slurm, tmp_path)
    slurm(["scancel", number], check=True)
    assert becomes(lambda: is_gone(facts["folder"])), list(PLACES.glob("**/*"))


def test_a_job_that_is_preempted_leaves_nothing(slurm, tmp_path):
    _, facts = submitted(slurm, tmp_path)
    slurm(["srun", "-p", "urgent", f"--cpus-per-task={os.cpu_count()}", "true"], check=True)
    assert becomes(lambda: is_gone(facts["folder"])), list(PLACES.glob("**/*"))


def test_a_step_of_srun_has_sandboxes_and_sweeps_what_a_job_killed_with_its_watchers_left(
    slurm, tmp_path
):
    number, facts = submitted(slurm, tmp_path)
    slurm(["scancel", "--signal=KILL", "--full", number], check=True)
    assert becomes(lambda: not slurm(["squeue", "-h", "-j", number]).stdout.strip())
    step_has_sandboxes_of_its_own(slurm, tmp_path)
    assert becomes(lambda: is_gone(facts["folder"])), list(PLACES.glob("**/*"))


def step_has_sandboxes_of_its_own(slurm, folder):
    (folder / "next").mkdir()
    job, facts_file = script(folder / "next", 0)
    done = slurm(["srun", f"--cpus-per-task={os.cpu_count()}", str(job)])
    assert done.returncode == 7, done.stderr
    facts = json.loads(facts_file.read_text())
    assert facts["said"] == "hi\n"
    assert str(facts["sandboxes"]) not in map(str, facts["mine"])
    assert becomes(lambda: is_gone(facts["folder"])), list(PLACES.glob("**/*"))
