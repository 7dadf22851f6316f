"""What the server's adapters do to a request's rows, on requests and buffers that are made up."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_periodic.compat.bindings import (
    server_capture,
    server_mixed_batch,
    server_retraction,
    server_routes,
    server_wire,
)
from miles_periodic.hooks import PeriodicError

LAYERS, TOP_K = 2, 2
BUFFER_SLOTS = 64


class Tensor:
    """The little of a tensor that the adapters use."""

    def __init__(self, values):
        self.values = values

    def __getitem__(self, key):
        return Tensor(self.values[key.values if isinstance(key, Tensor) else key])

    def __len__(self):
        return len(self.values)

    def cpu(self):
        return self

    def numpy(self):
        return self.values


def rows_of(tag, tokens):
    """Rows that say which pass (`tag`) computed which token."""
    rows = np.zeros((len(tokens), LAYERS, TOP_K), np.int32)
    rows[..., 0], rows[..., 1] = tag, np.reshape(tokens, (-1, 1))
    return rows


@pytest.fixture
def server(monkeypatch):
    """A host buffer and the slots of request 0; `forward(tag, first, end)` writes rows."""
    buffer = np.zeros((BUFFER_SLOTS, LAYERS, TOP_K), np.int32)
    pool = SimpleNamespace(req_to_token=[Tensor(np.arange(BUFFER_SLOTS))])
    monkeypatch.setattr(server_routes, "_host_buffer", lambda: Tensor(buffer))

    def forward(tag, first, end):
        buffer[first:end] = rows_of(tag, range(first, end))

    return SimpleNamespace(buffer=buffer, pool=pool, forward=forward)


def request(num_prompt=4, num_output=0, start=0, **fields):
    defaults = {
        "rid": "r",
        "origin_input_ids": [0] * num_prompt,
        "output_ids": [0] * num_output,
        "return_routed_experts": True,
        "routed_experts_start_len": start,
        "routed_experts": None,
        "input_embeds": None,
        "req_pool_idx": 0,
    }
    return SimpleNamespace(**{**defaults, **fields})


def retract(server, asked):
    server_retraction.keep(
        lambda **named: None, None, (), {"req": asked, "req_to_token_pool": server.pool}
    )


def collect(server, asked):
    """Gather natively, then give back what was kept."""

    def native(req):
        end = len(req.origin_input_ids) + len(req.output_ids) - 1
        req.routed_experts = Tensor(server.buffer[req.routed_experts_start_len : end].copy())

    server_retraction.give_back(native, None, (asked,), {})
    return asked.routed_experts.values


def test_rows_that_sampled_tokens_before_a_retraction_come_back_instead_of_the_second_prefills(
    server,
):
    asked = request(num_prompt=4, num_output=3)
    server.forward(1, 0, 6)
    retract(server, asked)
    server.forward(2, 0, 9)
    asked.output_ids += [0, 0, 0]
    rows = collect(server, asked)
    assert np.array_equal(rows, np.concatenate([rows_of(1, range(6)), rows_of(2, range(6, 9))]))


@given(
    num_prompt=st.integers(1, 6),
    start=st.integers(0, 6),
    generated=st.lists(st.integers(0, 4), min_size=1, max_size=5),
)
def test_over_any_number_of_retractions_each_row_is_of_the_pass_that_sampled_its_token(
    num_prompt, start, generated
):
    """Pass t generates `generated[t]` tokens after it forwarded all before them once more."""
    buffer = np.zeros((BUFFER_SLOTS, LAYERS, TOP_K), np.int32)
    pool = SimpleNamespace(req_to_token=[Tensor(np.arange(BUFFER_SLOTS))])
    start = min(start, num_prompt)
    asked = request(num_prompt, start=start)
    expected = np.zeros((0, LAYERS, TOP_K), np.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_routes, "_host_buffer", lambda: Tensor(buffer))
        server = SimpleNamespace(buffer=buffer, pool=pool)
        for number, num_new in enumerate(generated):
            if number:
                retract(server, asked)
            asked.output_ids += [0] * num_new
            end = num_prompt + len(asked.output_ids) - 1
            buffer[: max(end, 0)] = rows_of(number, range(max(end, 0)))
            if asked.output_ids:
                expected = np.concatenate([expected, rows_of(number, range(len(expected), end))])
        if asked.output_ids:
            assert np.array_equal(collect(server, asked), expected[start:])


def test_a_request_that_was_never_retracted_keeps_its_native_rows(server):
    asked = request(num_output=3)
    server.forward(1, 0, 6)
    assert np.array_equal(collect(server, asked), rows_of(1, range(6)))


@pytest.mark.parametrize(
    "fields",
    [
        {"return_routed_experts": False, "num_output": 3},
        {"num_output": 0},
        {"num_output": 3, "input_embeds": object()},
    ],
    ids=["nobody asked", "nothing was sampled", "its output is thrown away"],
)
def test_nothing_is_kept_where(server, fields):
    asked = request(**fields)
    before = set(vars(asked))
    retract(server, asked)
    assert set(vars(asked)) == before


def test_only_rows_that_were_asked_for_are_kept_in_two_bytes_per_id(server):
    asked = request(num_prompt=4, num_output=3, start=4)
    server.forward(1, 0, 6)
    retract(server, asked)
    (kept,) = [v for k, v in vars(asked).items() if "retraction" in k]
    assert kept.rows.nbytes == 2 * LAYERS * TOP_K * 2


def test_the_rows_of_a_request_whose_pool_index_stands_in_its_kv_are_found(server):
    asked = request(num_output=3)
    asked.kv = SimpleNamespace(req_pool_idx=asked.req_pool_idx)
    del asked.req_pool_idx
    server.forward(1, 0, 6)
    assert np.array_equal(server_routes.gathered(asked, server.pool, 2, 5), rows_of(1, [2, 3, 4]))


def test_a_batch_that_retracts_by_position_keeps_the_rows_of_that_request(server):
    asked = request(num_output=3)
    server.forward(1, 0, 6)
    batch = SimpleNamespace(reqs=[None, asked], req_to_token_pool=server.pool)
    server_retraction.keep_of_batch(lambda *args: None, batch, (1, 2, None), {})
    server.forward(2, 0, 6)
    assert np.array_equal(collect(server, asked), rows_of(1, range(6)))


def streamed(*asking):
    """What each request's flag was while the batch was streamed, and afterwards."""
    requests = [SimpleNamespace(return_routed_experts=flag) for flag in asking]
    seen = []

    def stream_output_generation(reqs, return_logprob, skip_req=None):
        seen.extend(r.return_routed_experts for r in reqs)

    server_mixed_batch.align(stream_output_generation, None, (requests, False), {})
    return seen, [r.return_routed_experts for r in requests]


def test_in_a_mixed_batch_every_request_has_its_place_and_afterwards_its_own_flag():
    assert streamed(True, False, True) == ([True] * 3, [True, False, True])


@pytest.mark.parametrize("flag", [True, False])
def test_a_batch_that_is_not_mixed_is_left_alone(flag):
    assert streamed(flag, flag) == ([flag] * 2, [flag] * 2)


def test_flags_are_given_back_where_streaming_fails():
    requests = [SimpleNamespace(return_routed_experts=flag) for flag in (True, False)]

    def fails(reqs):
        raise RuntimeError("broken pipe")

    with pytest.raises(RuntimeError):
        server_mixed_batch.align(fails, None, (requests,), {})
    assert [r.return_routed_experts for r in requests] == [True, False]


@pytest.fixture
def encoded(monkeypatch):
    """`encoded(blob, **config)`: what goes out where the features answer `blob`."""
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(from_numpy=Tensor))
    asked_of = []

    def run(blob, **config):
        def routed_experts_on_the_wire(**named):
            asked_of.append(named)
            return blob

        hook = SimpleNamespace(routed_experts_on_the_wire=routed_experts_on_the_wire)
        monkeypatch.setattr(server_wire, "manager", lambda: SimpleNamespace(hook=hook))
        monkeypatch.setattr(server_wire, "_said", set())
        scheduler = SimpleNamespace(
            model_config=SimpleNamespace(hf_text_config=SimpleNamespace(**config))
        )
        asked = request(start=3, routed_experts=Tensor(rows_of(1, range(3))))
        server_wire.encode(lambda req: None, scheduler, (asked,), {})
        return asked.routed_experts.values, asked_of

    return run


def test_what_a_feature_answers_goes_out_in_place_of_int32(encoded):
    blob = np.arange(5, dtype=np.uint8)
    sent, ((asked),) = encoded(blob, num_experts=128)
    assert sent is blob
    assert (asked["first_row"], asked["num_experts"]) == (3, 128)


def test_where_no_feature_answers_int32_goes_out(encoded):
    sent, _ = encoded(None, n_routed_experts=256)
    assert np.array_equal(sent, rows_of(1, range(3)))


@pytest.mark.parametrize("config", [{}, {"num_experts": 0}, {"moe_num_experts": [64, 64]}])
def test_a_model_that_states_no_number_of_experts_sends_int32_and_says_so(encoded, capfd, config):
    sent, asked_of = encoded(np.arange(5, dtype=np.uint8), **config)
    assert sent.dtype == np.int32 and not asked_of
    assert "states no number of experts" in capfd.readouterr().err


class Capturer:
    """A capturer whose buffer has as many rows as its flags say."""

    def __init__(self, num_rows):
        self.device_cache = SimpleNamespace(buffer=np.zeros(num_rows))


#: How trees read their arguments: names in the capturer's module to what they return.
READINGS = {
    "0.5.9": {"get_global_server_args": ("chunked_prefill_size", "dp_size")},
    "0.5.16": {"get_server_args": ("chunked_prefill_size", "dp_size")},
    "0.5.17": {"get_schedule": ("chunked_prefill_size",), "get_parallel": ("dp_size",)},
    "0.5.22": {"get_schedule": ("chunked_prefill_size",), "get_parallel": ("num_dp_ranks",)},
}


@pytest.fixture(params=READINGS)
def started(monkeypatch, request):
    """A capturer that is made, on a tree that reads its arguments as that release does."""

    def start(num_rows, chunk, num_running, num_ranks=1):
        known = {"chunked_prefill_size": chunk, "dp_size": num_ranks, "num_dp_ranks": num_ranks}
        module = sys.modules[Capturer.__module__]
        for name, fields in READINGS[request.param].items():
            read = SimpleNamespace(**{field: known[field] for field in fields})
            monkeypatch.setattr(module, name, lambda read=read: read, raising=False)
        if "get_schedule" in READINGS[request.param]:
            draft = "disable_routed_experts_capture_for_draft"
            monkeypatch.setattr(module, draft, None, raising=False)

        def native(model_config, max_running_requests):
            return None

        server_capture.check_room(
            native, Capturer(num_rows), (None,), {"max_running_requests": num_running}
        )

    return start


def test_a_server_without_a_bound_on_a_prefill_is_refused_with_the_flag(started):
    with pytest.raises(PeriodicError, match="Set --chunked-prefill-size to the most tokens"):
        started(num_rows=2048, chunk=-1, num_running=2048)


def test_a_buffer_that_does_not_count_the_ranks_is_refused_with_the_flags(started):
    with pytest.raises(PeriodicError, match="Set --chunked-prefill-size to 2048 or more"):
        started(num_rows=2048, chunk=512, num_running=2048, num_ranks=4)


def test_a_buffer_with_room_for_every_forward_is_taken(started):
    started(num_rows=8192, chunk=2048, num_running=2048, num_ranks=4)


def test_the_routes_of_a_forward_no_longer_change_with_the_buffer():
    buffer = np.zeros(3)

    class View(Tensor):
        def clone(self):
            return Tensor(self.values.copy())

    output = SimpleNamespace(topk=View(buffer), out_cache_loc=View(buffer))
    owned = server_capture.own(lambda: output, None, (), {})
    buffer += 1
    assert not owned.topk.values.any() and not owned.out_cache_loc.values.any()


def test_a_forward_without_overlap_has_nothing_to_own():
    assert server_capture.own(lambda: None, None, (), {}) is None
