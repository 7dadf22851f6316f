"""The feature's hooks over the turns of a rollout."""

import base64

import numpy as np
import pytest

from miles_periodic.hooks import PeriodicError, RolloutState
from miles_periodic.hooks.values import (
    RankShare,
    RouteAnswer,
    RouteShape,
    ServerGroup,
    SessionPrefix,
    SessionTurn,
)
from miles_periodic.plugins.delta_router_replay.feature import DeltaRouterReplay
from miles_periodic.plugins.delta_router_replay.settings import DeltaRouterReplaySettings

SHAPE = RouteShape(num_layers=2, top_k=2, num_experts=8)
REQUEST = {"return_routed_experts": True}


class Server:
    """Answers with the rows [start, tokens - 1) of routes that depend on the tokens alone."""

    def routes(self, tokens):
        token = np.asarray(tokens)[:-1, None]
        first = (token + np.arange(2)) % 8
        return np.stack([first, (first + 1 + token % 7) % 8], axis=-1).astype(np.int32)

    def answer(self, tokens, fields):
        rows = self.routes(tokens)[(fields or {}).get("routed_experts_start_len", 0) :]
        return base64.b64encode(rows.tobytes()).decode()


@pytest.fixture
def feature():
    return DeltaRouterReplay()


def turn(feature, rollout, prompt, new, server=None):
    server = server or Server()
    fields = feature.generate_request_fields(rollout=rollout, tokens=prompt, request=REQUEST)
    tokens = [*prompt, *new]
    rows = feature.routed_experts_of_response(
        rollout=rollout,
        tokens=tokens,
        answer=RouteAnswer(
            server.answer(tokens, fields),
            start=(fields or {}).get("routed_experts_start_len", 0),
            request_id="r",
        ),
        shape=SHAPE,
    )
    return fields, tokens, rows


def test_the_first_turn_asks_for_everything(feature):
    fields, _, rows = turn(feature, RolloutState(), [1, 2, 3], [4, 5])
    assert fields is None and len(rows) == 4


def test_a_later_turn_asks_only_for_rows_that_are_not_held(feature):
    rollout = RolloutState()
    _, tokens, _ = turn(feature, rollout, [1, 2, 3], [4, 5])
    fields, tokens, rows = turn(feature, rollout, [*tokens, 6, 7], [0, 1])
    assert fields == {"routed_experts_start_len": 4}
    assert (rows == Server().routes(tokens)).all()


def test_rewritten_history_drops_the_rows_behind_the_first_changed_token(feature):
    rollout = RolloutState()
    turn(feature, rollout, [1, 2, 3], [4, 5])
    fields, tokens, rows = turn(feature, rollout, [1, 2, 7, 7, 7, 7], [3])
    assert fields == {"routed_experts_start_len": 2}
    assert (rows == Server().routes(tokens)).all()


def test_a_request_without_replay_is_left_alone(feature):
    assert feature.generate_request_fields(rollout=RolloutState(), tokens=[1], request={}) is None


def test_a_server_that_ignores_the_start_is_refused(feature):
    class Deaf(Server):
        def answer(self, tokens, fields):
            return super().answer(tokens, None)

    rollout = RolloutState()
    _, tokens, _ = turn(feature, rollout, [1, 2, 3], [4, 5])
    with pytest.raises(PeriodicError, match="ignored routed_experts_start_len"):
        turn(feature, rollout, tokens, [6], Deaf())


def test_a_rank_gets_its_own_layers_and_positions_as_narrow_as_they_came(feature):
    routes = [np.array([[[7, 1], [2, 3]], [[0, 4], [5, 6]]], np.uint8)]
    share = RankShare(rank=0, micro_batch=0, layers=[1], rows=np.array([1, -1]))
    own = feature.routed_experts_for_training(routes=routes, share=share, shape=SHAPE)
    assert own.dtype == np.uint8 and own[0, 0].tolist() == [5, 6]


def test_a_rank_refuses_experts_that_the_model_does_not_have(feature):
    share = RankShare(rank=3, micro_batch=0, layers=[0], rows=np.array([0]))
    with pytest.raises(PeriodicError, match="(?s)rank 3.*take the feature out"):
        routes = [np.array([[[9, 1]]], np.uint8)]
        feature.routed_experts_for_training(routes=routes, share=share, shape=SHAPE)


def held_bytes(feature, micro_batch):
    routes = [np.array([[[7, 1], [2, 3]]] * 3, np.uint8)]
    share = RankShare(rank=1, micro_batch=micro_batch, layers=[0, 1], rows=np.arange(3))
    feature.routed_experts_for_training(routes=routes, share=share, shape=SHAPE)


def test_a_step_that_would_take_more_host_memory_than_allowed_is_refused():
    feature = DeltaRouterReplay(DeltaRouterReplaySettings(max_rank_bytes=20))
    held_bytes(feature, micro_batch=0)
    with pytest.raises(PeriodicError, match="(?s)Rank 1 would hold 24 bytes.*max_rank_bytes"):
        held_bytes(feature, micro_batch=1)


def test_the_next_step_counts_anew():
    feature = DeltaRouterReplay(DeltaRouterReplaySettings(max_rank_bytes=20))
    held_bytes(feature, micro_batch=0)
    held_bytes(feature, micro_batch=0)


def test_a_request_with_images_is_left_to_ask_for_all_rows(feature):
    request = {**REQUEST, "image_data": ["…"]}
    fields = feature.generate_request_fields(rollout=RolloutState(), tokens=[1], request=request)
    assert fields is None


def test_the_rows_of_a_request_with_images_are_as_many_as_the_server_sent(feature):
    answer = RouteAnswer(Server().answer(range(9), None), only_server_counts=True)
    rows = feature.routed_experts_of_response(
        rollout=RolloutState(), tokens=[1, 2], answer=answer, shape=SHAPE
    )
    assert len(rows) == 8


def proof_of(feature):
    (proof,) = feature.server_proofs(request=REQUEST)
    return proof


def answers(*rows):
    texts = [None if n is None else base64.b64encode(bytes(16 * n)).decode() for n in rows]
    return [{"meta_info": {} if t is None else {"routed_experts": t}} for t in texts]


def test_a_router_that_drops_routes_is_found_by_the_round_trip(feature):
    with pytest.raises(PeriodicError, match="--use-miles-router"):
        proof_of(feature).check(answers(None, None))


def test_a_server_that_answers_a_delta_in_full_is_found_by_the_round_trip(feature):
    with pytest.raises(PeriodicError, match="ignores the field"):
        proof_of(feature).check(answers(8, 8))


def test_a_server_that_answers_a_delta_passes_the_round_trip(feature):
    proof_of(feature).check(answers(8, 3))


def test_no_round_trip_is_made_where_nothing_is_replayed(feature):
    assert feature.server_proofs(request={}) is None


def test_hook_reaches_into_sessions_of_a_run_that_replays(feature):
    assert feature.reaches_into_sessions(arguments={"use_rollout_routing_replay": True})
    assert not feature.reaches_into_sessions(arguments={})


SESSION_SHAPE = RouteShape(num_layers=2, top_k=2, num_experts=8)


def session_fields(feature, **request):
    prefix = SessionPrefix([1, 2, 3], 2)
    return feature.session_request_fields(
        rollout=RolloutState(), prefix=prefix, tokens=[1, 2, 3, 4], request=request
    )


def test_hook_session_request_fields_asks_from_the_first_row_that_is_not_held(feature):
    fields = session_fields(feature, return_routed_experts=True)
    assert fields == {"routed_experts_start_len": 2}
    assert session_fields(feature) is None


def test_hook_session_response_refusal_ends_the_run_where_rows_are_too_many(feature):
    meta_info = {"id": "request-4", "routed_experts": "A" * 64}
    parts = {"rollout": RolloutState(), "meta_info": meta_info, "shape": SESSION_SHAPE}
    with pytest.raises(PeriodicError, match="request-4"):
        feature.session_response_refusal(request={}, num_tokens=3, **parts)
    assert feature.session_response_refusal(request={}, num_tokens=4, **parts) is None


def test_hook_routed_experts_of_session_refuses_by_name(feature):
    turns = [SessionTurn([1, 2], 0, "no base64!", "request-5")]
    with pytest.raises(PeriodicError, match="request-5"):
        feature.routed_experts_of_session(turns=turns, shape=SESSION_SHAPE)


def test_a_run_that_replays_nothing_is_left_alone(feature):
    assert feature.complete_arguments(arguments={"use_session_server": True}) is None


def replaying(**settings):
    feature = DeltaRouterReplay(DeltaRouterReplaySettings(**settings))
    feature.complete_arguments(arguments={"use_rollout_routing_replay": True})
    return feature


def test_prefill_servers_that_answer_no_routes_are_refused_by_name():
    servers = ServerGroup("prefill", {}, prefill_returns_routes=False)
    with pytest.raises(PeriodicError, match=r"0\.5\.22 or later"):
        replaying().server_arguments(servers=servers)


def test_a_pair_whose_halves_may_not_be_joined_is_refused_by_name():
    with pytest.raises(PeriodicError, match="join_halves=true"):
        replaying(join_halves=False).server_arguments(servers=ServerGroup("prefill", {}))


def test_a_pair_without_replay_is_nobodys_concern():
    servers = ServerGroup("prefill", {}, prefill_returns_routes=False)
    assert DeltaRouterReplay().server_arguments(servers=servers) is None
    assert replaying().server_arguments(servers=ServerGroup("decode", {})) is None


def test_a_missing_half_of_a_pair_ends_the_request_with_its_name():
    with pytest.raises(PeriodicError, match=r"request r-9, rows \[2, 4\): the prefill server"):
        DeltaRouterReplay().routed_experts_of_pair(
            prefill={"meta_info": {}},
            decode={"meta_info": {"routed_experts": "AAAA" * 16, "completion_tokens": 1}},
            request={"input_ids": [1, 2, 3, 4], "routed_experts_start_len": 2},
            request_id="r-9",
        )


@pytest.mark.parametrize(("compact_wire", "itemsize"), [(True, 1), (False, None)])
def test_hook_routed_experts_on_the_wire_answers_where_the_setting_is_on(compact_wire, itemsize):
    feature = DeltaRouterReplay(DeltaRouterReplaySettings(compact_wire=compact_wire))
    rows = Server().routes(range(9))
    blob = feature.routed_experts_on_the_wire(rows=rows, first_row=4, num_experts=8)
    assert (blob is None) == (itemsize is None)
    if blob is not None:
        assert blob.nbytes == 16 + rows.size * itemsize


def test_a_server_whose_prefills_have_no_bound_is_refused_before_it_starts(feature):
    arguments = {"use_rollout_routing_replay": True, "sglang_chunked_prefill_size": -1}
    with pytest.raises(PeriodicError, match="Set --sglang-chunked-prefill-size"):
        feature.complete_arguments(arguments=arguments)


@pytest.mark.parametrize("chunk", [None, 8192])
def test_a_server_whose_prefills_are_bounded_is_taken(feature, chunk):
    arguments = {"use_rollout_routing_replay": True, "sglang_chunked_prefill_size": chunk}
    assert feature.complete_arguments(arguments=arguments) is None
