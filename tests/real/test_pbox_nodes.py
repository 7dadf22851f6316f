"""A job of two nodes, each in a network namespace: its command reaches the sandboxes of both."""

import contextlib
import json
import os
import subprocess
import sys

import pytest
from pbox_agent import IMAGES, PLATFORM
from pbox_image import base_image

pytestmark = pytest.mark.real
UP = [sys.executable, "-c", "from miles_periodic.cli.main import main; main()", "pbox", "up",
      "--image-dir", str(IMAGES), "--platform", PLATFORM]  # fmt: skip
NODES = ("10.213.7.1", "10.213.7.2")
JOB = """
import json, os
from pathlib import Path
from miles_periodic.plugins.pbox.client.blocking import connect_blocking

addresses = os.environ["PBOX_ADDRESS"].split(",")
said = []
for address in addresses:
    with connect_blocking(address) as host, host.sandbox() as box:
        said.append(box.exec(["echo", "hi"]).stdout.decode())
with connect_blocking() as host:
    first = len(host.sandboxes())
print(json.dumps({"addresses": addresses, "said": said, "first": first}))
# Both nodes' agents stay until both commands are done.
ready = Path(os.environ["SHARED"]) / ("ready-" + os.environ["SLURM_NODEID"])
ready.touch()
import time
while len(list(ready.parent.glob("ready-*"))) < 2: time.sleep(0.05)
"""


@pytest.fixture
def networks():
    """Two namespaces with an address each, joined by a pair of interfaces."""
    names = [f"pbox-{os.getpid()}-{number}" for number in (0, 1)]
    try:
        for name in names:
            ip("netns", "add", name)
        ends = [f"pbx{os.getpid() % 100000}{letter}" for letter in "ab"]
        ip("link", "add", ends[0], "netns", names[0], "type", "veth",
           "peer", "name", ends[1], "netns", names[1])  # fmt: skip
        for name, end, address in zip(names, ends, NODES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            for link in (end, "lo"):
                ip("-n", name, "link", "set", link, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=120)


def node(network, number, folder):
    environment = {
        **os.environ, "SLURM_JOB_ID": f"{os.getpid()}", "SLURM_NNODES": "2",
        "SLURM_NODEID": str(number), "SHARED": str(folder),
    }  # fmt: skip
    return subprocess.Popen(
        ["nsenter", f"--net=/run/netns/{network}", *UP, "--share", str(folder / "meet"),
         "--listen-on", NODES[number], "--", sys.executable, "-c", JOB],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_the_commands_of_all_nodes_reach_the_sandboxes_of_all_nodes_and_nothing_stays(
    networks, tmp_path
):
    base_image()
    with contextlib.ExitStack() as held:
        nodes = [node(network, number, tmp_path) for number, network in enumerate(networks)]
        for each in nodes:
            held.callback(each.kill)
        for number, each in enumerate(nodes):
            out, error = each.communicate(timeout=300)
            assert each.returncode == 0, error
            facts = json.loads(out)
            own, other = (f"http://{NODES[n]}:" for n in (number, 1 - number))
            assert [a.rpartition(":")[0] + ":" for a in facts["addresses"]] == [own, other]
            assert facts["said"] == ["hi\n", "hi\n"]
    assert list((tmp_path / "meet").iterdir()) == []
