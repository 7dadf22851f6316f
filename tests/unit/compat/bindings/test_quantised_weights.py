"""Waves of quantised weights: the same on every rank, each rank's part within its room."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from miles_periodic.compat.bindings import quantised_weights
from miles_periodic.compat.bindings.quantised_weights import (
    Quantising,
    Share,
    least_bytes,
    plan_waves,
    quantise_in_waves,
    quantising,
)

GROUP = object()
ALIGNED_BYTES = 256


class Host:
    """An offloaded optimizer, as far as it lends its workspace."""

    def __init__(self, num_bytes):
        self.memory = torch.zeros(num_bytes, dtype=torch.uint8)
        self.asked = []

    @contextlib.contextmanager
    def lent_workspace(self, least):
        self.asked.append(least)
        assert least <= self.memory.numel()
        yield self.memory


class Upstream:
    """Megatron's call, which keeps what it is given."""

    def __init__(self):
        self.calls = []

    def __call__(
        self,
        model_params,
        main_params,
        start_offsets,
        data_parallel_group,
        fsdp_shard_model_params=None,
    ):
        shown = [None if master is None else master.clone() for master in main_params]
        self.calls.append((list(model_params), shown, list(start_offsets), data_parallel_group))


@pytest.fixture
def alone(monkeypatch):
    others = []
    in_group(monkeypatch, others)
    return others


def in_group(patch, others):
    """Ranks talk without a process group: with others' shares after a rank's own."""

    def gather(shares, own, group):
        assert group is GROUP
        shares[:] = [own, *others]

    patch.setattr(torch.distributed, "get_world_size", lambda group: 1 + len(others))
    patch.setattr(torch.distributed, "all_gather_object", gather)


def weights(*lengths):
    return [torch.zeros(n, dtype=torch.bfloat16) for n in lengths]


def written(own, models, masters, offsets):
    upstream = Upstream()
    with quantising(own):
        quantise_in_waves(upstream, None, (models, masters, offsets, GROUP), {})
    return upstream.calls


def test_each_weight_is_quantised_once_from_its_master_rounded_to_its_dtype(alone):
    lengths = (300, 40, 500, 128)
    models, masters = weights(*lengths), [torch.randn(n) for n in lengths]
    calls = written(Quantising(Host(2048)), models, masters, [0, 7, 0, 9])
    assert len(calls) > 1
    found = {id(w): (m, s) for call in calls for w, m, s in zip(*call[:3], strict=True)}
    assert sum(len(call[0]) for call in calls) == len(found) == len(models)
    for model, master, start in zip(models, masters, [0, 7, 0, 9], strict=True):
        assert torch.equal(found[id(model)][0], master.bfloat16())
        assert found[id(model)][1] == start
    assert {call[3] for call in calls} == {GROUP}


def test_a_master_that_is_larger_than_the_staging_comes_in_pieces(alone):
    model, master = weights(1000), torch.randn(1000)
    own = Quantising(Host(least_bytes(1000, 2)))
    ((_, (shown,), _, _),) = written(own, model, [master], [0])
    assert torch.equal(shown, master.bfloat16())


@pytest.fixture
def events(monkeypatch):
    """What comes in and what is quantised, by the first weight of each wave."""
    found, real = [], quantised_weights._rounded

    def rounded(models, masters, wave, room, staging):
        found.append(("in", wave[0]))
        return real(models, masters, wave, room, staging)

    monkeypatch.setattr(quantised_weights, "_rounded", rounded)
    return found


def in_order(events, own, lengths):
    models, masters = weights(*lengths), [torch.ones(n) for n in lengths]

    def upstream(model_params, main_params, start_offsets, data_parallel_group):
        events.append(("quantised", positions(models, model_params)[0]))

    with quantising(own):
        quantise_in_waves(upstream, None, (models, masters, [0] * len(models), GROUP), {})
    return events


def positions(models, given):
    return [next(i for i, model in enumerate(models) if model is one) for one in given]


def test_masters_of_the_next_wave_come_in_before_this_one_is_quantised(alone, events):
    own = Quantising(Host(2048))
    first = [("in", 0), ("in", 1), ("quantised", 0), ("in", 2), ("quantised", 1)]
    assert in_order(events, own, (384, 384, 384)) == [*first, ("quantised", 2)]
    assert own.num_rooms == 2


def test_a_weight_of_more_than_half_the_workspace_has_the_whole_of_it(alone, events):
    own = Quantising(Host(2048))
    expected = [("in", 0), ("quantised", 0), ("in", 1), ("quantised", 1)]
    assert in_order(events, own, (500, 384)) == expected
    assert own.num_rooms == 1


class Stream:
    """Writes down whom it waits for."""

    def __init__(self, name, events):
        self.name, self.events, self.num_recorded = name, events, 0

    def wait_stream(self, other):
        self.events.append((self.name, "waits for", other.name))

    def record_event(self):
        self.num_recorded += 1
        return self.num_recorded - 1

    def wait_event(self, number):
        self.events.append((self.name, "waits for load", number))


@pytest.fixture
def streams(events, monkeypatch):
    """The events of a GPU, with what its two streams wait for among them."""
    real = quantised_weights._beside
    current, side = Stream("current", events), Stream("side", events)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority: side)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(quantised_weights, "_beside", lambda _: real(torch.device("cuda")))
    return events


ALL_ASKED, ALL_LOADED = ("side", "waits for", "current"), ("current", "waits for", "side")


def test_loads_wait_for_what_was_asked_before_and_each_wave_for_its_load(alone, streams):
    assert in_order(streams, Quantising(Host(2048)), (384, 384, 384)) == [
        *(ALL_ASKED, ("in", 0)),
        *(ALL_ASKED, ("in", 1)),
        *(("current", "waits for load", 0), ("quantised", 0)),
        *(ALL_ASKED, ("in", 2)),
        *(("current", "waits for load", 1), ("quantised", 1)),
        *(("current", "waits for load", 2), ("quantised", 2)),
        ALL_LOADED,
    ]


def test_a_load_under_way_is_waited_for_where_quantising_fails(alone, streams):
    def upstream(model_params, main_params, start_offsets, data_parallel_group):
        raise KeyError(len(streams))

    given = (weights(384, 384), [torch.ones(384)] * 2, [0, 0], GROUP)
    with pytest.raises(KeyError), quantising(Quantising(Host(2048))):
        quantise_in_waves(upstream, None, given, {})
    assert ("in", 1) in streams and streams[-1] == ALL_LOADED


@given(
    lengths=st.lists(st.integers(1, 900), min_size=1, max_size=20), spare_bytes=st.integers(0, 9000)
)
def test_every_wave_finds_its_own_masters_in_its_room(lengths, spare_bytes):
    memory_bytes = least_bytes(max(lengths), 2) + spare_bytes
    models, masters = weights(*lengths), [torch.randn(n) for n in lengths]
    with pytest.MonkeyPatch.context() as patch:
        in_group(patch, [])
        calls = written(Quantising(Host(memory_bytes)), models, masters, [0] * len(models))
    shown = {}
    for quantised, rounded, *_ in calls:
        shown |= zip(positions(models, quantised), rounded, strict=True)
    assert all(torch.equal(shown[i], master.bfloat16()) for i, master in enumerate(masters))


def test_a_rank_without_a_master_takes_part_in_every_wave_of_the_others(alone):
    alone.append(Share((700, 700, 700), 2048))
    calls = written(Quantising(Host(1024)), weights(700, 700, 700), [None] * 3, [None] * 3)
    assert [(shown, starts) for _, shown, starts, _ in calls] == [([None], [None])] * 3


def test_waves_are_agreed_on_once(alone, monkeypatch):
    own, models = Quantising(Host(4096)), weights(200)
    written(own, models, [torch.ones(200)], [0])
    monkeypatch.delattr(torch.distributed, "all_gather_object")
    assert len(written(own, models, [torch.ones(200)], [0])) == 1
    assert own.optimizer.asked[-1] == own.memory_bytes == 4096


def test_waves_keep_their_rooms_where_more_is_lent_later(alone):
    """Of 4,096 bytes more would be for what masters pass through, and less for them."""
    own, lengths = Quantising(Host(4095)), (896, 768)
    models, masters = weights(*lengths), [torch.randn(n) for n in lengths]
    for num_bytes in (4095, 4096):
        own.optimizer.memory = torch.zeros(num_bytes, dtype=torch.uint8)
        ((_, shown, _, _),) = written(own, models, masters, [0, 0])
        assert all(map(torch.equal, shown, (master.bfloat16() for master in masters)))


def test_what_no_offloaded_optimizer_writes_is_left_to_megatron():
    upstream, given = Upstream(), (weights(3), [torch.zeros(3)], [0], GROUP)
    quantise_in_waves(upstream, None, given, {})
    ((models, _, _, _),) = upstream.calls
    assert models[0] is given[0][0]


def test_weights_are_those_of_the_optimizer_that_is_written_now():
    own = Quantising(Host(512))
    with contextlib.suppress(ValueError), quantising(own):
        raise ValueError
    assert quantised_weights._NOW.get() is None


SHARES = st.integers(1, 4).flatmap(
    lambda ranks: st.lists(
        st.lists(st.integers(0, 900), min_size=ranks, max_size=ranks), max_size=30
    ).map(lambda rows: [tuple(row[rank] for row in rows) for rank in range(ranks)])
)


@given(lengths=SHARES, room=st.integers(8 * ALIGNED_BYTES, 5000))
def test_every_weight_is_in_one_wave_and_no_rank_is_over_its_room(lengths, room):
    shares = [Share(own, room) for own in lengths]
    waves = plan_waves(shares, [2] * len(lengths[0]))
    assert sorted(weight for wave in waves for weight in wave) == list(range(len(lengths[0])))
    for wave in waves:
        for own in lengths:
            assert sum(-(-own[weight] // 128) * ALIGNED_BYTES for weight in wave) <= room


def test_all_ranks_move_masters_in_the_same_waves():
    """Rank 0 has the first half of the buffer, rank 1 the second."""
    shares = [Share((128,) * 8 + (0,) * 8, 512), Share((0,) * 8 + (128,) * 8, 512)]
    waves = plan_waves(shares, [2] * 16)
    assert waves == ((0, 1, 8, 9), (2, 3, 10, 11), (4, 5, 12, 13), (6, 7, 14, 15))


def test_a_weight_over_the_room_is_an_error_on_every_rank_not_an_endless_wave():
    with pytest.raises(ValueError, match="over its workspace"):
        plan_waves([Share((10,), 4096), Share((5000,), 4096)], [2])


@pytest.mark.parametrize("length", [1, 127, 128, 129, 5000, 100_000])
def test_so_many_bytes_hold_a_master_of_that_length(alone, length):
    model = SimpleNamespace(dtype=torch.bfloat16)
    master = torch.randn(length)
    own = Quantising(Host(least_bytes(length, 2)))
    ((_, (shown,), _, _),) = written(own, [model], [master], [0])
    assert torch.equal(shown, master.bfloat16())
