"""Control groups of both versions, on folders that stand for the kernel's."""

from pathlib import Path

import pytest

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.limits import MIB, Limits
from miles_periodic.plugins.pbox.node.cgroups import count, find
from miles_periodic.plugins.pbox.node.cgroups_v1 import CgroupsV1
from miles_periodic.plugins.pbox.node.cgroups_v2 import CgroupsV2, CgroupV2

V1 = ("memory", "pids", "cpu", "cpuset", "cpuacct")
LIMITS = Limits(memory_bytes=128 * MIB, num_processes=200, num_cpus=1.5)


def line(kind, place, options):
    return f"30 20 0:25 / {place} rw - {kind} cgroup rw,{options}\n"


def v1_table(root, controllers=V1):
    return "".join(line("cgroup", root / name, name) for name in controllers)


def unified(root, controllers):
    (root / "unified").mkdir(parents=True)
    (root / "unified/cgroup.controllers").write_text(controllers)
    return line("cgroup2", root / "unified", "nsdelegate")


def test_version_1_is_found_by_its_controllers(tmp_path):
    found = find("pbox", v1_table(tmp_path))
    assert (found.version, found.places["memory"]) == (1, tmp_path / "memory")


def test_controllers_that_share_a_mount_are_found(tmp_path):
    table = line("cgroup", tmp_path / "both", "cpu,cpuacct") + v1_table(tmp_path, V1[:2])
    found = find("pbox", table + v1_table(tmp_path, ["cpuset"]))
    assert found.places["cpu"] == found.places["cpuacct"] == tmp_path / "both"


def test_version_2_is_found_where_it_has_the_controllers(tmp_path):
    assert find("pbox", unified(tmp_path, "cpuset cpu io memory pids\n")).version == 2


def test_a_mixed_machine_is_of_the_version_that_has_the_controllers(tmp_path):
    assert find("pbox", unified(tmp_path, "hugetlb\n") + v1_table(tmp_path)).version == 1


def test_a_missing_controller_is_named(tmp_path):
    with pytest.raises(PeriodicError, match="missing: pids"):
        find("pbox", v1_table(tmp_path, [name for name in V1 if name != "pids"]))


def text(path):
    return Path(path).read_text()


def v1_tree(root):
    for name in V1:
        (root / name).mkdir(parents=True)
    for parent in (root / "cpuset", root / "cpuset/pbox", root / "cpuset/pbox/a"):
        parent.mkdir(exist_ok=True)
        for file, value in (("cpuset.cpus", "0-7"), ("cpuset.mems", "0")):
            (parent / file).write_text(value if parent.name == "cpuset" else "\n")
    (root / "cpuset/pbox/a").joinpath("cpuset.cpus").unlink()
    (root / "cpuset/pbox/a").joinpath("cpuset.mems").unlink()
    (root / "cpuset/pbox/a").rmdir()
    return CgroupsV1({name: root / name for name in V1}, "pbox")


def test_version_1_gives_a_group_cpus_before_anything_enters_it(tmp_path):
    groups = v1_tree(tmp_path)
    groups.prepare("2-3", 1 << 30)
    groups.make("a", LIMITS)
    assert text(tmp_path / "cpuset/pbox/a/cpuset.cpus") == "2-3"
    assert text(tmp_path / "cpuset/pbox/a/cpuset.mems") == "0"
    assert text(tmp_path / "memory/pbox/memory.limit_in_bytes") == str(1 << 30)


def test_version_1_writes_every_limit(tmp_path):
    groups = v1_tree(tmp_path)
    groups.prepare("", None)
    groups.make("a", LIMITS)
    assert text(tmp_path / "memory/pbox/a/memory.limit_in_bytes") == str(128 * MIB)
    assert text(tmp_path / "pids/pbox/a/pids.max") == "200"
    assert text(tmp_path / "cpu/pbox/a/cpu.cfs_quota_us") == "150000"


def v2_tree(root):
    (root / "pbox").mkdir(parents=True)
    (root / "cgroup.subtree_control").touch()
    return CgroupsV2(root, "pbox")


def test_version_2_hands_its_controllers_down_to_the_sandboxes(tmp_path):
    v2_tree(tmp_path).prepare("2-3", 1 << 30)
    wanted = "+memory +pids +cpu +cpuset"
    for folder in (tmp_path, tmp_path / "pbox"):
        assert text(folder / "cgroup.subtree_control") == wanted
    assert text(tmp_path / "pbox/cpuset.cpus") == "2-3"
    assert text(tmp_path / "pbox/memory.max") == str(1 << 30)


def test_version_2_writes_every_limit_and_ends_a_sandbox_whole(tmp_path):
    group = v2_tree(tmp_path).make("a", LIMITS)
    files = {path.name: text(path) for path in group.folder.iterdir()}
    assert files == {
        "memory.max": str(128 * MIB),
        "memory.oom.group": "1",
        "pids.max": "200",
        "cpu.max": "150000 100000",
    }


def test_version_2_allows_no_swap_where_there_is_any(tmp_path):
    group = CgroupV2(tmp_path)
    (tmp_path / "memory.swap.max").write_text("max")
    group.apply(LIMITS)
    assert text(tmp_path / "memory.swap.max") == "0"


def test_version_2_reads_its_counters(tmp_path):
    files = {
        "memory.current": "1000\n",
        "memory.events": "low 0\nhigh 0\nmax 4\noom 2\noom_kill 1\n",
        "pids.current": "7\n",
        "pids.events": "max 3\n",
        "cpu.stat": "usage_usec 2500000\nnr_throttled 9\nthrottled_usec 5\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    usage = CgroupV2(tmp_path).usage()
    assert (usage.memory_bytes, usage.most_memory_bytes, usage.num_processes) == (1000, None, 7)
    assert (usage.cpu_seconds, usage.num_oom_kills) == (2.5, 1)
    assert (usage.num_refused_forks, usage.num_throttled) == (3, 9)


def test_a_counter_that_the_kernel_lacks_is_0(tmp_path):
    (tmp_path / "file").write_text("other 4\n")
    assert count(tmp_path / "file", "oom_kill") == 0


def test_a_group_that_is_gone_has_no_processes_and_can_be_removed(tmp_path):
    group = CgroupV2(tmp_path / "gone")
    group.remove()
    assert group.pids() == []
