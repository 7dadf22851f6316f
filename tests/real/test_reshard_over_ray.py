"""Conversions over a real Ray: the same files, workers that die, errors from afar."""

import json
import os
import signal

import pytest
from megatron_states import write_source
from small_models import CONFIG, same, state, written

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding import reshard
from miles_periodic.plugins.fast_resharding.ray_workers import RayWorkers

SMALL = {"unit_bytes": 64, "task_bytes": 256, "workers": 2}


@pytest.fixture(scope="module", autouse=True)
def one_ray():
    import ray

    # Without a word, Ray would look for one that is or was here.
    ray.init(
        "local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error"
    )
    yield
    ray.shutdown()


@pytest.fixture
def places(tmp_path):
    """Source, target and the model's folder."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    write_source(tmp_path / "source", state(CONFIG), groups=2)
    return tmp_path / "source", tmp_path / "target", tmp_path / "model"


def test_a_conversion_over_ray_gives_the_model(places):
    source, target, model = places
    report = reshard(source, target, config=model, verify=True, **SMALL)
    assert same(written(target), state(CONFIG))
    assert (report.num_workers, report.verified) == (2, True)


def test_the_task_of_a_worker_that_was_killed_is_done_by_another(places, monkeypatch):
    import ray

    source, target, model = places
    pools, killed = [], []
    enter = RayWorkers.__enter__
    monkeypatch.setattr(RayWorkers, "__enter__", lambda self: pools.append(self) or enter(self))

    def kill_one(progress):
        if progress.done_bytes and not killed:
            call = pools[0]._actors[0].__ray_call__.remote(lambda worker: os.getpid())
            killed.append(ray.get(call))
            os.kill(killed[0], signal.SIGKILL)

    reshard(source, target, config=model, on_progress=kill_one, **SMALL)
    assert killed
    assert same(written(target), state(CONFIG))


def test_more_workers_than_the_cluster_has_cpus_are_refused_instead_of_waited_for(
    places, monkeypatch
):
    import ray

    source, target, model = places
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with pytest.raises(PeriodicError, match="(?s)too few CPUs.*--workers 2"):
        reshard(source, target, config=model, **(SMALL | {"workers": 3}))
    assert not target.exists()


def test_an_error_in_a_worker_arrives_as_it_was_raised(places):
    source, target, model = places
    path = source / "__1_0.distcp"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(PeriodicError, match="(?s)is not a tensor.*Copy the checkpoint") as caught:
        reshard(source, target, config=model, **SMALL)
    assert "ray::" not in str(caught.value)
    assert not target.exists()


def test_a_cluster_that_is_not_there_is_an_error_with_another_way(places, monkeypatch):
    import ray

    source, target, model = places
    monkeypatch.setattr(ray, "is_initialized", lambda: False)

    def refuse(**_):
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(PeriodicError, match="(?s)cannot be reached.*--workers 0"):
        reshard(source, target, config=model, address="nowhere:1", **SMALL)


def test_another_cluster_than_the_one_that_this_process_is_in_is_refused(places):
    source, target, model = places
    with pytest.raises(PeriodicError, match="(?s)in another Ray cluster already.*nowhere:1"):
        reshard(source, target, config=model, address="nowhere:1", **SMALL)
