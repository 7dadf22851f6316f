"""A real prefill and a real decode server: what crosses, whose routes are whose, what survives."""

import base64
import runpy
from pathlib import Path

import numpy as np
import pytest

from miles_periodic.compat.cpu import tiny_model
from miles_periodic.plugins.decode_radix_cache.proof import check_report
from miles_periodic.plugins.delta_router_replay import RouteRows, RouteRowsError, halves

pytestmark = pytest.mark.real

observed = runpy.run_path(str(Path(__file__).with_name("pair_observed.py")))
NUM_ADDED = 10
MODEL = tiny_model.TinyModel()
SHAPE = (MODEL.num_hidden_layers, MODEL.num_experts_per_tok)
#: Keys and values of one token over all layers, two bytes each.
TOKEN_BYTES = 2 * 2 * MODEL.num_hidden_layers * MODEL.num_key_value_heads * MODEL.head_dim


def observing(version, **options):
    @pytest.fixture(scope="module")
    def pair(sglang_path, tmp_path_factory):
        folder = tmp_path_factory.mktemp("pair")
        return observed["observe"](folder, sglang_path(version), **options)

    return pair


newest = observing("0.5.23", decode_cache=True, update=True, prefixes=(1, 2, 15, 40))
newest_without = observing("0.5.23", decode_cache=False)
older = observing(
    "0.5.16",
    decode_cache=True,
    num_turns=2,
    prefixes=(1, 15, 33),
)


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
    newest, newest_without
):
    new = [turn.moved.kv_bytes for turn in newest.delta]
    total = [turn.moved.kv_bytes for turn in newest_without.delta]
    prompts = [len(turn.prompt) for turn in newest.delta]
    assert total == [tokens * TOKEN_BYTES for tokens in prompts]
    assert new[0] == total[0]
    # A release that ends without overlap has no KV for the last token of the response before.
    assert all(NUM_ADDED <= moved // TOKEN_BYTES <= NUM_ADDED + 1 for moved in new[1:])


def test_the_transfer_engine_is_handed_what_sglang_counts(newest, newest_without):
    for turn in (*newest.delta, *newest_without.delta):
        assert turn.moved.engine_bytes >= turn.moved.kv_bytes
    overheads = {t.moved.engine_bytes - t.moved.kv_bytes for t in newest.delta}
    assert max(overheads) < 10 * TOKEN_BYTES


def test_a_turn_never_reports_more_cached_tokens_than_its_prompt_has(newest, older):
    for pair in (newest, older):
        for turn in (*pair.delta, *pair.full):
            assert turn.decode["meta_info"]["cached_tokens"] <= len(turn.prompt)


def test_deltas_assembled_turn_by_turn_equal_the_suffixes_of_full_answers(newest):
    rows = RouteRows(*SHAPE, MODEL.num_experts)
    for delta, full in zip(newest.delta, newest.full, strict=True):
        assert delta.tokens == full.tokens
        assert joined(delta).tobytes() == joined(full)[delta.start :].tobytes()
        rows.append(delta.start, joined(delta).astype(np.int32))
        assert len(rows) == len(delta.tokens) - 1


def test_a_prompts_rows_are_those_of_the_prefill_server_and_not_the_decode_servers(newest):
    """What the decode server answers for tokens that it never forwarded are not its routes."""
    first = newest.full[0]
    num_prompt = len(first.prompt)
    text = first.decode["meta_info"]["routed_experts"]
    decode = np.frombuffer(base64.b64decode(text), np.int32).reshape(-1, *SHAPE)
    assert not np.array_equal(decode[:num_prompt], joined(first)[:num_prompt])
    assert np.array_equal(decode[num_prompt:], joined(first)[num_prompt:])


def test_a_release_whose_prefill_answers_no_rows_is_an_error_that_names_request_and_rows(older):
    turn = older.full[1]
    with pytest.raises(RouteRowsError, match=rf"request r-7, rows \[0, {len(turn.prompt)}\)"):
        joined(turn, "r-7")


@pytest.mark.parametrize("pair", ["newest", "older"])
def test_a_prefix_of_any_length_is_reused_whole_and_changes_no_answer(pair, request):
    """Pages of more than one token need a Triton kernel, so that a CPU has pages of one."""
    reuses = request.getfixturevalue(pair).reuses
    for reuse in reuses:
        assert reuse.warm == reuse.cold
        assert reuse.cached == reuse.prefix


def test_a_decode_server_says_that_its_cache_is_on(newest, older, newest_without):
    for pair in (newest, older):
        check_report(pair.report)
    assert newest_without.report["disable_radix_cache"] is True


def test_a_request_that_names_no_prefill_server_is_refused_and_the_server_lives(newest, older):
    for pair in (newest, older):
        assert pair.refusals == [400, 400]
        assert pair.still_answers
        assert pair.never_consulted == []


def test_a_paused_pair_stands_still_and_its_running_request_survives_new_weights(newest):
    update = newest.update
    assert len(set(update.generated_while_paused)) == 1
    assert 0 < update.generated_while_paused[0] < observed["NUM_RUNNING"]
    assert [answer["success"] for answer in update.answers] == [True, True]
    assert update.num_generated == observed["NUM_RUNNING"]


def test_a_rollout_under_a_new_salt_reuses_nothing_of_the_old_weights(newest):
    assert newest.update.cached_of_new == 0


def test_a_router_drops_the_request_for_routes_and_both_servers_asked_answer_it(newest):
    routed = newest.routed
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


def test_a_half_that_a_release_does_not_answer_ends_the_request_by_name(older):
    assert "the prefill server answered no routed experts" in older.routed.joined


def test_the_proof_passes_where_the_cache_is_on_and_finds_where_it_is_off(
    newest, older, newest_without
):
    assert (newest.routed.proof, older.routed.proof) == ("", "")
    assert "without its radix cache" in newest_without.routed.proof
