"""Tokens reused, computed again and stale, from what servers answer."""

import pytest

from miles_periodic.plugins.kv_preservation.accounting import (
    Counts,
    Held,
    KVAccount,
)
from miles_periodic.plugins.kv_preservation.kv_record import KVRecord

PROMPT = list(range(100, 140))


@pytest.fixture
def account():
    return KVAccount(KVRecord(block_tokens=4))


def answer(new=(1, 2, 3), cached=0, version="1", **meta):
    logprobs = [(-0.5, token, None) for token in new]
    return {
        "meta_info": {
            "cached_tokens": cached,
            "weight_version": version,
            "output_token_logprobs": logprobs,
            **meta,
        }
    }


def turn(account, held, tokens, start="1", **response):
    account.asks(held, start)
    account.answered(held, start, tokens, answer(**response))


def test_tokens_from_the_cache_are_reused(account):
    turn(account, Held(), PROMPT, cached=8)
    assert account.counts.reused_tokens == 8


def test_a_turn_that_finds_its_kv_computes_nothing_again(account):
    held = Held()
    turn(account, held, PROMPT)
    turn(account, held, [*PROMPT, 1, 2, 3, 50, 51], cached=42)
    assert account.counts.re_prefilled_tokens == 0


def test_a_turn_whose_kv_was_flushed_computes_all_that_was_held_again(account):
    held = Held()
    turn(account, held, PROMPT)
    turn(account, held, [*PROMPT, 1, 2, 3, 50, 51], cached=0)
    assert account.counts.re_prefilled_tokens == 42  # the third new token had no KV yet


def test_tokens_that_a_rollout_never_held_are_no_waste(account):
    held = Held()
    turn(account, held, PROMPT)
    turn(account, held, [*PROMPT[:10], 7, 7, 7, 7], cached=10)
    assert account.counts.re_prefilled_tokens == 0


def test_the_last_token_of_a_prompt_is_always_computed(account):
    held = Held()
    turn(account, held, PROMPT)
    turn(account, held, PROMPT, cached=39)
    assert account.counts.re_prefilled_tokens == 0


def test_a_new_rollout_that_reuses_kv_of_older_weights_is_served_stale_tokens(account):
    turn(account, Held(), PROMPT)
    turn(account, Held(), PROMPT, start="2", version="2", cached=39)
    assert account.counts.stale_tokens == 36


def test_a_running_rollout_may_reuse_its_own_older_kv(account):
    held = Held()
    turn(account, held, PROMPT)
    turn(account, held, [*PROMPT, 1, 2, 3, 50], version="2", cached=42)
    assert account.counts.stale_tokens == 0


def test_kv_of_the_same_weights_is_not_stale(account):
    turn(account, Held(), PROMPT)
    turn(account, Held(), PROMPT, cached=39)
    assert account.counts.stale_tokens == 0


def test_a_prompt_prefilled_before_an_update_is_as_old_though_newer_weights_answered(account):
    turn(account, Held(), PROMPT, start="1", version="2")
    turn(account, Held(), PROMPT, start="2", version="2", cached=39)
    assert account.counts.stale_tokens == 36


def test_a_prompt_computed_again_after_an_update_is_fresh_for_new_rollouts(account):
    held = Held()
    turn(account, held, PROMPT)
    turn(account, Held(), [5, 6], start="2", version="2")
    turn(account, held, [*PROMPT, 1, 2, 3, 50], version="2", cached=0)
    turn(account, Held(), PROMPT, start="2", version="2", cached=39)
    assert account.counts.stale_tokens == 0


def test_reported_spans_decide_which_weights_computed_what(account):
    spans = [{"version": "1", "start": 0, "end": 2}, {"version": "2", "start": 2, "end": 10}]
    new = tuple(range(10))
    turn(account, Held(), PROMPT, version="2", weight_versions=spans, new=new)
    turn(account, Held(), [*PROMPT, *new], start="2", version="2", cached=48)
    assert account.counts.stale_tokens == 44  # the block of new tokens 0 to 3 began under 1


def test_retractions_are_counted_under_either_name(account):
    turn(account, Held(), PROMPT, num_retractions=2)
    turn(account, Held(), PROMPT, total_retractions=1)
    assert account.counts.retractions == 3


def test_an_answer_with_text_only_is_counted_by_its_prompt(account):
    held = Held()
    account.answered(held, "1", PROMPT, {"text": "…", "meta_info": {"cached_tokens": 3}})
    assert (held.tokens, account.counts.reused_tokens) == (PROMPT, 3)


def test_new_token_ids_are_taken_where_they_stand_alone(account):
    held = Held()
    account.answered(held, "1", PROMPT, {"output_ids": [1, 2], "meta_info": {}})
    assert held.tokens == [*PROMPT, 1]


def test_counts_are_handed_over_once(account):
    turn(account, Held(), PROMPT, cached=8)
    assert account.drain().requests == 1
    assert account.drain() == Counts()


def test_a_request_that_was_aborted_while_it_waited_computed_nothing(account):
    held = Held()
    turn(account, held, range(20))
    turn(account, held, range(23), new=(), finish_reason={"type": "abort"}, completion_tokens=0)
    assert account.counts.re_prefilled_tokens == 0 and account.counts.requests == 1
