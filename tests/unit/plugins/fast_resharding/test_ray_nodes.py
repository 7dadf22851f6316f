"""Tasks go to the nodes that hold the files, shown with a Ray of one process and two nodes.

What a node sees under a path lies in a folder of its own. tests/real/test_reshard_nodes.py shows
the same with raylets whose mounts differ.
"""

import shutil
from collections import Counter
from itertools import cycle

import pytest
import ray
from megatron_states import write_source
from small_models import IN_MANY_TASKS, refused, same, written

from miles_periodic.plugins.fast_resharding import reshard
from miles_periodic.plugins.fast_resharding.staging import staging_folder

A, B = "a" * 56, "b" * 56
RAY = {**IN_MANY_TASKS, "workers": 4}


class OneProcess:
    """The parts of Ray that a conversion uses. sees: by node, where a path lies there."""

    def __init__(self, *nodes):
        self.sees = {node: {} for node in nodes}
        self.ran = Counter()
        self._spread = cycle(nodes)

    def nodes(self):
        return [
            {
                "NodeID": node,
                "Alive": True,
                "Resources": {"CPU": 4.0},
                "NodeManagerHostname": f"host-{node[0]}",
                "NodeManagerAddress": "10.0.0.1",
            }
            for node in self.sees
        ]

    def remote(self, scheduling_strategy="SPREAD", **_options):
        return lambda made: _Remote(self, made, scheduling_strategy)

    def node_of(self, strategy):
        return next(self._spread) if strategy == "SPREAD" else strategy.node_id

    def there(self, node, arguments):
        paths = self.sees[node]
        return [
            next((there + a.removeprefix(here) for here, there in paths.items() if here in a), a)
            if isinstance(a, str)
            else a
            for a in arguments
        ]


class _Remote:
    def __init__(self, cluster, made, strategy):
        self.cluster, self.made, self.strategy = cluster, made, strategy

    def options(self, scheduling_strategy):
        return _Remote(self.cluster, self.made, scheduling_strategy)

    def remote(self, *arguments):
        node = self.cluster.node_of(self.strategy)
        result = self.made(*self.cluster.there(node, arguments))
        return _Actor(self.cluster, result, node) if isinstance(self.made, type) else [result]


class _Actor:
    def __init__(self, cluster, instance, node):
        self._own = cluster, instance, node

    def __getattr__(self, name):
        cluster, instance, node = self._own
        return type(
            "Method", (), {"remote": lambda _, *a: _Result(cluster, instance, node, name, a)}
        )()


class _Result:
    def __init__(self, cluster, instance, node, name, arguments):
        cluster.ran[node, name] += 1
        self.value = getattr(instance, name)(*arguments)


@pytest.fixture
def cluster(monkeypatch):
    cluster = OneProcess(A, B)

    def get(results, timeout=None):
        if isinstance(results, list) and all(isinstance(r, list) for r in results):
            return [value for [value] in results]
        return [r.value for r in results] if isinstance(results, list) else results.value

    for name, instead in {
        "get": get,
        "is_initialized": lambda: True,
        "kill": lambda actor: None,
        "nodes": cluster.nodes,
        "remote": cluster.remote,
        "wait": lambda calls, num_returns: (calls[:1], calls[1:]),
        "get_runtime_context": lambda: type("Context", (), {"gcs_address": "head:1"}),
    }.items():
        monkeypatch.setattr(ray, name, instead)
    return cluster


@pytest.fixture
def apart(cluster, source, tmp_path):
    """Files 0 and 2 lie on node a, file 1 on node b; the driver has the metadata alone."""
    for node, names in ((A, "02"), (B, "1")):
        folder = tmp_path / f"on-{node[0]}"
        folder.mkdir()
        for number in names:
            shutil.move(source / f"__{number}_0.distcp", folder)
        cluster.sees[node][str(source)] = str(folder)
    return cluster


def test_where_every_node_sees_every_file_workers_are_spread(
    cluster, source, expected, model_folder, target
):
    report = reshard(source, target, config=model_folder, verify=True, **RAY)
    assert same(written(target), expected)
    assert {node for node, method in cluster.ran if method == "run"} == {A, B}
    assert report.fetched_bytes == 0


def test_a_node_that_is_gone_at_the_end_is_not_asked_what_has_changed(
    cluster, source, expected, model_folder, target
):
    def go(progress):
        cluster.sees.pop(B, None)

    reshard(source, target, config=model_folder, on_progress=go, **RAY)
    assert same(written(target), expected)


def test_tasks_run_on_the_node_that_holds_their_files(
    apart, source, expected, model_folder, target
):
    report = reshard(source, target, config=model_folder, verify=True, **RAY)
    assert same(written(target), expected)
    assert apart.ran[A, "run"] > apart.ran[B, "run"] > 0
    assert report.checked_bytes > report.converted_bytes


def test_what_no_node_holds_alone_is_read_by_the_one_that_has_it(
    apart, source, expected, model_folder, target
):
    report = reshard(source, target, config=model_folder, **RAY)
    assert 0 < report.fetched_bytes < report.read_bytes / 2
    assert apart.ran[A, "read"] + apart.ran[B, "read"] > 0


def test_whole_experts_on_each_node_need_nothing_of_another(
    cluster, tmp_path, expected, model_folder, target
):
    """Each rank has tensors of its own: no unit reads two files."""
    write_source(tmp_path / "source", expected, groups=2, how="layers apart", parts=1)
    for node, number in ((A, 0), (B, 1), (B, 2)):
        folder = tmp_path / f"on-{node[0]}"
        folder.mkdir(exist_ok=True)
        shutil.move(tmp_path / "source" / f"__{number}_0.distcp", folder)
        cluster.sees[node][str(tmp_path / "source")] = str(folder)
    report = reshard(tmp_path / "source", target, config=model_folder, **RAY)
    assert same(written(target), expected)
    assert report.fetched_bytes == 0


def test_fewer_workers_than_nodes_that_hold_files_are_refused(apart, source, model_folder, target):
    options = RAY | {"workers": 1}
    named = r"(?s)files lie on 2 nodes.*--workers 2 or more"
    refused(named, source, target, model_folder, **options)


def test_a_target_that_a_node_does_not_see_is_refused(
    apart, source, model_folder, target, tmp_path
):
    (tmp_path / "other").mkdir()
    apart.sees[B][str(staging_folder(target))] = str(tmp_path / "other")
    named = r"(?s)not the same folder.*on host-b \(10\.0\.0\.1\).*Choose a target"
    refused(named, source, target, model_folder, **RAY)


def test_a_file_that_no_node_sees_is_named(apart, source, model_folder, target, tmp_path):
    (tmp_path / "on-b" / "__1_0.distcp").unlink()
    refused(r"__1_0\.distcp is missing", source, target, model_folder, **RAY)


def test_different_files_of_one_name_are_refused(apart, source, model_folder, target, tmp_path):
    (tmp_path / "on-a" / "__1_0.distcp").write_bytes(b"another checkpoint's")
    refused(r"(?s)different files by the name __1_0\.distcp", source, target, model_folder, **RAY)


def test_a_run_goes_on_with_what_was_done_on_other_nodes(
    apart, source, expected, model_folder, target
):
    def stop(progress):
        if progress.done_bytes > 1000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reshard(source, target, config=model_folder, on_progress=stop, **RAY)
    report = reshard(source, target, config=model_folder, resume=True, **RAY)
    assert report.resumed_bytes >= 1000
    assert same(written(target), expected)
