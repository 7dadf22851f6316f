"""A real Slurm of one node from Debian's packages, its daemons children of the test."""

import contextlib
import os
import shutil
import socket
import subprocess
import time

import pytest

from miles_periodic.compat.cpu.free_port import free_port

CONFIGURATION = """
ClusterName=pbox
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort={controller_port}
SlurmdPort={node_port}
MpiDefault=none
SwitchType=switch/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
KillWait=60
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
JobRequeue=0
NodeName=n0 NodeHostname={host} NodeAddr=127.0.0.1 Port={node_port} CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=n0 Default=YES State=UP PriorityTier=1 PreemptMode=CANCEL GraceTime=0
PartitionName=urgent Nodes=n0 State=UP PriorityTier=10 PreemptMode=OFF
"""
READY_SECONDS = 180


@contextlib.contextmanager
def cluster(folder):
    """Start it; yields `run(words)`, which runs one of Slurm's commands to its end.

    A machine without Slurm skips whoever asks; one whose Slurm does not start fails them.
    """
    if absent := [name for name in ("slurmctld", "slurmd", "munged") if not shutil.which(name)]:
        pytest.skip(f"{', '.join(absent)} not installed; `make sandboxes` installs Slurm on Debian")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "slurm.conf").write_text(CONFIGURATION.format(
        folder=folder, host=socket.gethostname().split(".")[0], cpus=os.cpu_count(),
        controller_port=free_port(), node_port=free_port()))  # fmt: skip
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    daemons = []
    try:
        daemons.append(start(folder, [
            "munged", "--foreground", "--force", f"--socket={folder}/munge.socket",
            f"--key-file={key}", f"--pid-file={folder}/munged.pid",
            f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed"]))  # fmt: skip
        daemons.append(start(folder, ["slurmctld", "-D", "-f", folder / "slurm.conf"]))
        daemons.append(start(folder, ["slurmd", "-D", "-N", "n0", "-f", folder / "slurm.conf"]))
        wait_until_idle(environment, folder)
        yield lambda words, **options: subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=300, **options
        )
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            try:
                daemon.wait(60)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def start(folder, words):
    with (folder / f"{words[0]}.out").open("wb") as output:
        return subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT)


def wait_until_idle(environment, folder):
    deadline = time.monotonic() + READY_SECONDS
    while True:
        words = ["sinfo", "-h", "-p", "main", "-t", "idle", "-o", "%D"]
        said = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
        if said.stdout.strip() == "1":
            return
        logs = "".join(path.read_text()[-2000:] for path in folder.glob("*.log"))
        assert time.monotonic() < deadline, said.stdout + said.stderr + logs
        time.sleep(0.2)
