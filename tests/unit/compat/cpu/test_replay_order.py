"""Replayed routes follow the order of a padded micro-batch's router."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from miles_periodic.compat.cpu import replay_order  # noqa: E402
from miles_periodic.hooks.errors import PeriodicError  # noqa: E402


def routes_of(num_samples: int, length: int):
    """Rows sample by sample, each telling its sample and position."""
    rows = [[[sample, position]] for sample in range(num_samples) for position in range(length)]
    return torch.tensor(rows)


def test_rows_come_position_by_position():
    ordered = replay_order.position_major(routes_of(num_samples=2, length=3), num_samples=2)
    assert ordered[:, 0].tolist() == [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2], [1, 2]]


def test_rows_of_a_single_sample_stay_as_they_are():
    rows = routes_of(num_samples=1, length=5)
    assert torch.equal(replay_order.position_major(rows, num_samples=1), rows)


def test_fixed_micro_batches_have_the_iterators_size():
    iterator = SimpleNamespace(micro_batch_indices=None, micro_batch_size=2)
    assert replay_order.micro_batch_sizes(iterator, 3) == [2, 2, 2]


def test_planned_micro_batches_have_the_sizes_of_the_plan():
    iterator = SimpleNamespace(micro_batch_indices=[[0], [3, 1], [2]], micro_batch_size=None)
    assert replay_order.micro_batch_sizes(iterator, 3) == [1, 2, 1]


class Trainer:
    """Miles's train actor as far as the stand-in sees it: it registers sample by sample."""

    def __init__(self, qkv_format: str, sequence_parallel: bool = False) -> None:
        self.args = SimpleNamespace(qkv_format=qkv_format, sequence_parallel=sequence_parallel)

    def _fill_replay_data(
        self,
        data_iterator,
        num_microbatches,
        rollout_data,
        data_key,
        replay_list,
        register_replay_list_func,
        if_sp_region=True,
    ):
        for _ in range(sum(num_microbatches)):
            register_replay_list_func(replay_list, routes_of(num_samples=2, length=3), None)


@pytest.fixture
def trainer_type(monkeypatch):
    subclass = type("MegatronTrainRayActor", (Trainer,), {})
    module = SimpleNamespace(__name__="actor", MegatronTrainRayActor=subclass)
    replay_order.routes_by_position(module)
    return subclass


def registered_by(trainer) -> list:
    rows: list = []
    iterator = SimpleNamespace(micro_batch_indices=None, micro_batch_size=2)
    trainer._fill_replay_data(
        [iterator], [1], {}, "routes", rows, lambda held, routes, model: held.append(routes)
    )
    return rows[0][:, 0].tolist()


def test_padded_batches_are_reordered(trainer_type):
    assert registered_by(trainer_type("bshd"))[:2] == [[0, 0], [1, 0]]


def test_packed_batches_are_left_alone(trainer_type):
    assert registered_by(trainer_type("thd"))[:2] == [[0, 0], [0, 1]]


def test_sequence_parallel_is_refused_with_what_to_give_instead(trainer_type):
    with pytest.raises(PeriodicError, match="--micro-batch-size 1"):
        registered_by(trainer_type("bshd", sequence_parallel=True))
