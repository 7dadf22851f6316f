"""A real prefill and a real decode server: what crosses, whose routes are whose, what survives."""

import base64

import numpy as np
import pair_observed
import pytest

from miles_periodic.compat.cpu import tiny_model
from miles_periodic.compat.matrix.called import calls
from miles_periodic.plugins.decode_radix_cache.proof import check_report
from miles_periodic.plugins.delta_router_replay import RouteRows, halves

pytestmark = pytest.mark.real

NUM_ADDED = 10
MODEL = tiny_model.TinyModel()
SHAPE = (MODEL.num_hidden_layers, MODEL.num_experts_per_tok)
#: Keys and values of one token over all layers, two bytes each.
TOKEN_BYTES = 2 * 2 * MODEL.num_hidden_layers * MODEL.num_key_value_heads * MODEL.head_dim


def observing(version, **options):
    @pytest.fixture(scope="module")
    def pair(sglang_path, tmp_path_factory):
        folder = tmp_path_factory.mktemp("pair")
        return pair_observed.observe(folder, sglang_path(version), **options)

    return pair


with_cache = observing("0.5.23", decode_cache=True, update=True, prefixes=(1, 2, 15, 40))
without_cache = observing("0.5.23", decode_cache=False)


def joined(turn, request_id="turn"):
    """Rows [start, tokens - 1) of a turn, from both halves."""
    text = halves.join(
        turn.prefill["meta_info"].get("routed_experts"),
        turn.decode["meta_info"].get("routed_experts"),
        start=turn.start,
        num_prompt_tokens=len(turn.prompt),
        num_tokens=len(turn.tokens),
        request_id=request_id,
    )
    return np.frombuffer(base64.b64decode(text), np.int32).reshape(-1, *SHAPE)


def test_with_the_cache_a_turn_moves_its_new_tokens_and_without_it_the_whole_prompt(
    with_cache, without_cache
):
    new = [turn.moved.kv_bytes for turn in with_cache.delta]
    total = [turn.moved.kv_bytes for turn in without_cache.delta]
    prompts = [len(turn.prompt) for turn in with_cache.delta]
    assert total == [tokens * TOKEN_BYTES for tokens in prompts]
    assert new[0] == total[0]
    # A release that ends without overlap has no KV for the last token of the response before.
    assert all(NUM_ADDED <= moved // TOKEN_BYTES <= NUM_ADDED + 1 for moved in new[1:])


def test_the_transfer_engine_is_handed_what_sglang_counts(with_cache, without_cache):
    for turn in (*with_cache.delta, *without_cache.delta):
        assert turn.moved.engine_bytes >= turn.moved.kv_bytes
    overheads = {t.moved.engine_bytes - t.moved.kv_bytes for t in with_cache.delta}
    assert max(overheads) < 10 * TOKEN_BYTES


def test_a_turn_never_reports_more_cached_tokens_than_its_prompt_has(with_cache):
    for turn in (*with_cache.delta, *with_cache.full):
        assert turn.decode["meta_info"]["cached_tokens"] <= len(turn.prompt)


def test_deltas_assembled_turn_by_turn_equal_the_suffixes_of_full_answers(with_cache):
    rows = RouteRows(*SHAPE, MODEL.num_experts)
    for delta, full in zip(with_cache.delta, with_cache.full, strict=True):
        assert delta.tokens == full.tokens
        assert joined(delta).tobytes() == joined(full)[delta.start :].tobytes()
        rows.append(delta.start, joined(delta).astype(np.int32))
        assert len(rows) == len(delta.tokens) - 1


def test_a_prompts_rows_are_those_of_the_prefill_server_and_not_the_decode_servers(with_cache):
    """What the decode server answers for tokens that it never forwarded are not its routes."""
    first = with_cache.full[0]
    num_prompt = len(first.prompt)
    text = first.decode["meta_info"]["routed_experts"]
    decode = np.frombuffer(base64.b64decode(text), np.int32).reshape(-1, *SHAPE)
    assert not np.array_equal(decode[:num_prompt], joined(first)[:num_prompt])
    assert np.array_equal(decode[num_prompt:], joined(first)[num_prompt:])


def test_a_prefix_of_any_length_is_reused_whole_and_changes_no_answer(with_cache):
    """Pages of more than one token need a Triton kernel, so that a CPU has pages of one."""
    for reuse in with_cache.reuses:
        assert reuse.warm == reuse.cold
        assert reuse.cached == reuse.prefix


def test_a_decode_server_says_that_its_cache_is_on(with_cache, without_cache):
    check_report(with_cache.report)
    assert without_cache.report["disable_radix_cache"] is True


def test_a_request_that_names_no_prefill_server_is_refused_and_the_server_lives(with_cache):
    assert with_cache.refusals == [400, 400]
    assert with_cache.still_answers
    assert with_cache.never_consulted == []
    called = calls()["sglang-0.5.23"]["tests/real/test_prefill_decode.py"]
    assert called == {pair_observed.GUARD.name}


def test_a_paused_pair_stands_still_and_its_running_request_survives_new_weights(with_cache):
    update = with_cache.update
    assert len(set(update.generated_while_paused)) == 1
    assert 0 < update.generated_while_paused[0] < pair_observed.NUM_RUNNING
    assert [answer["success"] for answer in update.answers] == [True, True]
    assert update.num_generated == pair_observed.NUM_RUNNING


def test_a_rollout_under_a_new_salt_reuses_nothing_of_the_old_weights(with_cache):
    assert with_cache.update.cached_of_new == 0


def test_a_router_drops_the_request_for_routes_and_both_servers_asked_answer_it(with_cache):
    routed = with_cache.routed
    assert "routed_experts" not in routed.plain["meta_info"]
    prefill, decode = routed.alone
    expected = halves.join(
        prefill["meta_info"]["routed_experts"],
        decode["meta_info"]["routed_experts"],
        start=0,
        num_prompt_tokens=len(routed.tokens),
        num_tokens=len(routed.tokens) + len(decode["output_ids"]),
    )
    assert routed.joined["output_ids"] == decode["output_ids"]
    assert routed.joined["meta_info"]["routed_experts"] == expected


def test_the_proof_passes_where_the_cache_is_on_and_finds_where_it_is_off(
    with_cache, without_cache
):
    assert with_cache.routed.proof == ""
    assert "without its radix cache" in without_cache.routed.proof
