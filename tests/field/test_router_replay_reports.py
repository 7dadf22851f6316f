"""What broke router replay for others, upstream and next door, as the behaviour that is right.

Each test names the report. Shape: 3 layers, top 2 of 8 experts.
"""

import base64
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from miles_periodic.compat.bindings.per_token import truncate
from miles_periodic.compat.bindings.replay_fill import CompactRoutes, own_layers
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks import PeriodicError
from miles_periodic.hooks.values import RankShare, RouteAnswer, RouteShape
from miles_periodic.plugins.delta_router_replay import RouteRows, RouteRowsError, wire
from miles_periodic.plugins.delta_router_replay.feature import DeltaRouterReplay
from miles_periodic.plugins.delta_router_replay.payload import decode
from miles_periodic.plugins.delta_router_replay.rank_share import own_routes
from miles_periodic.plugins.delta_router_replay.settings import DeltaRouterReplaySettings
from miles_periodic.plugins.delta_router_replay.trajectory import Trajectory

SHAPE = RouteShape(num_layers=3, top_k=2, num_experts=8)


def rows_of(num_rows, seed=0):
    drawn = np.random.default_rng(seed).random((num_rows, 3, 8))
    return np.argsort(drawn, axis=-1)[..., :2].astype(np.int32)


def text_of(rows):
    return base64.b64encode(rows.tobytes()).decode()


def share(rows, layers=(0, 1, 2), micro_batch=0):
    return RankShare(rank=5, micro_batch=micro_batch, layers=layers, rows=np.asarray(rows))


@pytest.mark.parametrize("num_rows", [3, 4])
def test_a_request_without_new_tokens_brings_the_row_of_each_forwarded_token(num_rows):
    """sglang#20964: with max_new_tokens=0 the last input token's row is lost (seqlen - 1).

    Servers that lose it and servers that send it are both right for a client that is handed one
    row per token but the last; where it came, it is held and not asked for again.
    """
    held = Trajectory()
    held.ask([1, 2, 3, 4])
    rows = held.answer([1, 2, 3, 4], RouteAnswer(text_of(rows_of(num_rows))), SHAPE)
    assert len(rows) == 3
    assert held.ask([1, 2, 3, 4, 5]) == num_rows


def test_a_full_answer_of_a_later_turn_leaves_the_rows_that_sampled_earlier_turns():
    """miles#3307: under retract, a later turn's full routes overwrite decode-time rows."""
    rows = RouteRows(3, 2, 8)
    rows.append(0, rows_of(4, seed=1))
    rows.append(0, rows_of(6, seed=2))
    assert (rows.array()[:4] == rows_of(4, seed=1)).all()
    assert (rows.array()[4:] == rows_of(6, seed=2)[4:]).all()


@pytest.mark.parametrize("experts", [[8, 0], [-1, 2], [3, 3]])
def test_experts_are_checked_before_they_are_dispatched(experts):
    """miles#1002: an id out of range ends an all-to-all with "Split sizes doesn't match"."""
    routes = rows_of(4)
    routes[2, 1] = experts
    with pytest.raises(RouteRowsError, match="rank 5, micro-batch 0, layer 1, row 2"):
        own_routes([routes], share(range(4)), SHAPE)


@pytest.mark.parametrize("shape", [(4, 3, 1), (4, 2, 2)])
def test_rows_with_another_count_of_experts_or_layers_are_refused(shape):
    """miles#1002: the counts per token are those of the model."""
    with pytest.raises(RouteRowsError, match="shape|divide"):
        RouteRows(3, 2, 8).append(0, np.zeros(shape, np.int32), request_id="r")


def miles_function(target, **names):
    """A function or class of the installed Miles, from its sources, with `names` as its globals."""
    import ast

    found = Tree.installed("miles").find(target)
    assert found is not None
    exec(compile(ast.Module([found[1]], []), target, "exec"), names)
    return names[target.partition(":")[2]]


def test_truncating_a_sample_cuts_its_routes_with_its_tokens():
    """miles#861, #893: tokens, log-probabilities and mask are cut, routes are not."""
    status = SimpleNamespace(TRUNCATED="truncated")
    native = miles_function(
        "miles.rollout.generate_utils.openai_endpoint_utils:_truncate_sample_output",
        Sample=SimpleNamespace(Status=status),
    )
    sample = SimpleNamespace(
        tokens=[1, 2, 3, 4, 5, 6],
        response_length=4,
        response="3 4 5 6",
        rollout_log_probs=[-1.0] * 4,
        loss_mask=[1] * 4,
        rollout_routed_experts=rows_of(5),
        metadata={},
    )
    tokenizer = SimpleNamespace(decode=lambda tokens: " ".join(map(str, tokens)))
    truncate(native, None, (sample, 2, tokenizer), {})
    assert (sample.tokens, sample.status) == ([1, 2, 3, 4], "truncated")
    assert len(sample.rollout_log_probs) == len(sample.loss_mask) == 2
    assert len(sample.rollout_routed_experts) == 3


def test_a_rank_holds_only_its_own_layers_and_positions():
    """slime#2384: the full payload goes to every rank of a group, and the host runs out."""
    routes = [rows_of(64).astype(np.uint8)]
    own = own_routes(routes, share(range(16), layers=[1]), SHAPE)
    assert own.nbytes * 4 * 3 == routes[0].nbytes


def test_a_rank_over_its_byte_budget_stops_before_it_takes_the_bytes():
    """slime#2384: the budget is checked, not found out."""
    feature = DeltaRouterReplay(DeltaRouterReplaySettings(max_rank_bytes=10))
    with pytest.raises(PeriodicError, match="(?s)would hold 12 bytes.*max_rank_bytes = 10"):
        feature.routed_experts_for_training([rows_of(2, 0).astype(np.uint8)], share([0, 1]), SHAPE)


def test_routes_travel_as_a_blob_that_says_what_it_holds():
    """NeMo-RL#3292: nested JSON numbers are 40 MB and a second of CPU per sample and hop."""
    rows = rows_of(500)
    blob = wire.encode(rows, first_row=20, num_experts=8)
    header = wire.read_header(blob.tobytes())
    assert (header.first_row, header.num_layers, header.top_k, header.itemsize) == (20, 3, 2, 1)
    assert len(base64.b64encode(blob.tobytes())) * 2 < len(json.dumps(rows.tolist()))


def test_nested_numbers_are_refused_by_what_they_are():
    """NeMo-RL#3292: a client must not parse its way through them in silence."""
    with pytest.raises(RouteRowsError, match="it is a list; base64 text, bytes or an array"):
        RouteRows(3, 2, 8).append(0, rows_of(2).tolist())


FORMS = {
    "base64 text": text_of,
    "bytes": lambda rows: rows.tobytes(),
    "an array": lambda rows: rows,
    "a blob": lambda rows: wire.encode(rows, 0, 8).tobytes(),
    "a blob as text": lambda rows: text_of(wire.encode(rows, 0, 8)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_known_form_is_read(form):
    """dynamo#9657: 0.5.11 sends base64 text where a tensor came before."""
    assert (decode(FORMS[form](rows_of(4)), 3, 2) == rows_of(4)).all()


def test_an_unknown_form_is_refused_by_its_name():
    """dynamo#9657: "'str' object has no attribute 'numpy'" says nothing."""
    with pytest.raises(ValueError, match="it is a Tensor; base64 text, bytes or an array"):
        decode(torch.zeros(4, 3, 2), 3, 2)


class Router(torch.nn.Module):
    """What Megatron's router is to a replay: the module that holds it, and its layer from 1."""

    def __init__(self, layer_number, **marks):
        super().__init__()
        self.layer_number = layer_number
        self.routing_replay = SimpleNamespace(top_indices_list=[])
        vars(self).update(marks)


def test_layers_are_told_by_the_router_and_not_by_its_place_in_a_list():
    """verl#7106: under virtual pipeline stages, counting picks another layer."""
    chunks = [torch.nn.ModuleList([Router(2), Router(3)]), torch.nn.ModuleList([Router(7)])]
    replays = [module.routing_replay for chunk in chunks for module in chunk]
    assert own_layers(chunks, replays) == {0: 1, 1: 2, 2: 6}
    assert own_layers(chunks, replays[::-1]) == {0: 6, 1: 2, 2: 1}


@pytest.mark.parametrize("marks", [{"is_mtp": True}, {}])
def test_multi_token_prediction_replays_no_layer_of_the_backbone(marks):
    """NeMo-RL#3903: layer 1 of the MTP block replays the backbone's layer 1."""
    model = torch.nn.ModuleDict({"decoder": Router(1), "mtp": torch.nn.ModuleList([Router(1)])})
    mtp = model["mtp"][0]
    vars(mtp).update(marks)
    replays = [model["decoder"].routing_replay, mtp.routing_replay]
    assert own_layers([model], replays) == {0: 0}


def replayed(num_micro_batches):
    """Miles's own replay of layer 1, filled for micro-batches of two positions each."""
    replay = miles_function("miles.utils.replay_base:Replay", torch=torch)()
    routes = rows_of(2 * num_micro_batches).astype(np.uint8)
    for number in range(num_micro_batches):
        rows = np.arange(2 * number, 2 * number + 2)
        own = own_routes([routes], share(rows, micro_batch=number), SHAPE)
        padding = torch.zeros(2, dtype=torch.bool)
        replay.top_indices_list.append(CompactRoutes(torch.from_numpy(own), padding, layer=1))
    return replay, routes[:, 1].reshape(num_micro_batches, 2, 2)


@pytest.mark.parametrize(
    "schedule", ["F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1", "F0 F1 F2 B0 B1 B2"]
)
def test_a_backward_pass_gets_the_routes_of_its_own_forward_pass(schedule, monkeypatch):
    """AReaL#1166: under pipelining with recomputation the queue hands out another micro-batch's."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    replay, expected = replayed(4)
    for step in schedule.split():
        popped = replay.pop_forward() if step[0] == "F" else replay.pop_backward()
        assert (popped.numpy() == expected[int(step[1])]).all(), step


def test_alignment_positions_do_not_shift_the_rows_of_real_ones():
    """verl#7106: tokens that only fill up a packed batch shift recorded routes."""
    routes = rows_of(5).astype(np.uint8)
    rows = np.array([0, 1, -1, -1, 2, 3, 4, -1])
    own = own_routes([routes], share(rows, layers=[2]), SHAPE)
    padding = torch.from_numpy(rows < 0)
    given = CompactRoutes(torch.from_numpy(own), padding, layer=0).to("cpu").numpy()
    assert (given[rows < 0] == -1).all()
    assert (given[rows >= 0] == routes[:, 2]).all()


def test_padding_is_no_expert_even_where_ids_fill_their_dtype():
    """verl#7106: real and padded positions are told apart by more than a value."""
    values = torch.full((1, 2, 2), 255, dtype=torch.uint8)
    given = CompactRoutes(values, torch.tensor([False, True]), layer=0).to("cpu")
    assert given.tolist() == [[255, 255], [-1, -1]]
