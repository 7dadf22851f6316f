"""The prefix index against what was really sent: never too much, never too large, always alike."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from miles_periodic.plugins.request_routing.prefix_index import Expectation, PrefixIndex

BLOCK = 4
URLS = ("a", "b")
PROMPTS = st.lists(st.integers(0, 2), max_size=24)
SENT = st.lists(st.tuples(st.sampled_from(URLS), st.sampled_from(["", "s"]), PROMPTS), max_size=12)
TOKENS = list(range(20))


def common(one, other):
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


def index(max_tokens=1 << 20):
    return PrefixIndex(BLOCK, max_tokens)


def send(held, url, tokens, salt=""):
    path = held.path(salt, tokens)
    return path, held.expected(url, path), held.sent(url, path)


@given(SENT, PROMPTS)
def test_what_is_expected_is_the_longest_prefix_that_was_sent_in_whole_blocks(sent, prompt):
    held = index()
    for url, salt, tokens in sent:
        send(held, url, tokens, salt)
    for url in URLS:
        longest = max((common(t, prompt) for u, s, t in sent if (u, s) == (url, "")), default=0)
        expected = held.expected(url, held.path("", prompt)).num_tokens
        assert expected == longest // BLOCK * BLOCK


@given(SENT, PROMPTS, st.integers(1, 40))
def test_no_more_is_held_than_the_bound_and_nothing_is_expected_that_was_not_sent(
    sent, prompt, max_tokens
):
    held = index(max_tokens)
    for url, salt, tokens in sent:
        send(held, url, tokens, salt)
        assert held.num_blocks() <= len(URLS) * max(1, max_tokens // BLOCK)
    for url in URLS:
        longest = max((common(t, prompt) for u, s, t in sent if (u, s) == (url, "")), default=0)
        assert 0 <= held.expected(url, held.path("", prompt)).num_tokens <= longest


@given(PROMPTS, st.integers(1, 6))
def test_where_room_is_short_the_head_of_the_last_prompt_stays(prompt, max_blocks):
    held = index(max_blocks * BLOCK)
    send(held, "a", [9] * 24)
    path, _, _ = send(held, "a", prompt)
    whole = len(prompt) // BLOCK
    assert held.expected("a", path).num_tokens == min(whole, max_blocks) * BLOCK


def test_a_block_stands_for_all_that_is_before_it():
    held = index()
    send(held, "a", [1, 1, 1, 1, 5, 5, 5, 5])
    assert held.expected("a", held.path("", [2, 2, 2, 2, 5, 5, 5, 5])) == Expectation()


def test_an_array_of_tokens_is_as_good_as_a_list():
    held = index()
    assert held.path("", TOKENS) == held.path("", array("q", TOKENS))


def test_what_was_computed_and_is_no_longer_cached_is_forgotten_with_all_that_is_older():
    held = index()
    _, before, time = send(held, "a", [7] * 8)
    held.answered("a", time, before, 0)
    _, before, time = send(held, "a", TOKENS)
    held.answered("a", time, before, 0)
    path, before, time = send(held, "a", [*TOKENS, 1, 2, 3, 4])
    assert (before.num_tokens, before.is_answered) == (20, True)
    held.answered("a", time, before, cached_tokens=0)
    assert held.expected("a", held.path("", [7] * 8)) == Expectation()
    assert held.expected("a", path).num_tokens == 24


def test_a_prefix_that_is_still_being_computed_proves_nothing():
    held = index()
    send(held, "a", [7] * 8)
    send(held, "a", TOKENS)
    _, before, time = send(held, "a", TOKENS)
    assert not before.is_answered
    held.answered("a", time, before, cached_tokens=0)
    assert held.expected("a", held.path("", [7] * 8)).num_tokens == 8


def test_the_one_token_that_a_server_always_computes_again_is_no_loss():
    held = index()
    _, before, time = send(held, "a", TOKENS)
    held.answered("a", time, before, 0)
    _, before, time = send(held, "a", TOKENS)
    held.answered("a", time, before, cached_tokens=19)
    assert not held.is_forgotten("a", time - 1)


def test_a_response_that_does_not_say_what_was_cached_changes_nothing():
    held = index()
    _, before, time = send(held, "a", TOKENS)
    held.answered("a", time, before, None)
    path, before, time = send(held, "a", TOKENS)
    held.answered("a", time, before, None)
    assert held.expected("a", path).num_tokens == 20


def test_a_server_that_failed_holds_nothing():
    held = index()
    path, before, time = send(held, "a", TOKENS)
    held.forget("a")
    held.answered("a", time, before, 0)
    assert held.expected("a", path) == Expectation()
    assert held.is_forgotten("a", time)
