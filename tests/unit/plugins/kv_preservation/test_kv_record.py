"""The record of which weights computed a prefix."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_periodic.plugins.kv_preservation.kv_record import KVRecord

TOKENS = list(range(100, 140))


@pytest.fixture
def record():
    return KVRecord(block_tokens=4)


def computed(record, tokens, start, version):
    chain = record.chain(tokens)
    record.computed(chain, start, lambda token: version)
    return chain


def test_kv_of_other_weights_is_stale_and_of_the_same_is_not(record):
    chain = computed(record, TOKENS, 0, "1")
    assert record.stale_tokens(chain, 40, "2") == 40
    assert record.stale_tokens(chain, 40, "1") == 0


def test_only_what_came_from_the_cache_counts(record):
    chain = computed(record, TOKENS, 0, "1")
    assert record.stale_tokens(chain, 8, "2") == 8
    assert record.stale_tokens(chain, 0, "2") == 0


def test_kv_that_was_computed_again_is_fresh(record):
    computed(record, TOKENS, 0, "1")
    chain = computed(record, TOKENS, 0, "2")
    assert record.stale_tokens(chain, 40, "2") == 0


def test_a_block_that_is_only_computed_to_its_end_stays_as_old_as_its_first_token(record):
    computed(record, TOKENS, 0, "1")
    chain = computed(record, TOKENS, 6, "2")
    assert record.stale_tokens(chain, 40, "2") == 8


def test_equal_blocks_behind_different_prefixes_are_not_one_prefix(record):
    computed(record, [1, 1, 1, 1, *TOKENS], 0, "1")
    assert record.stale_tokens(record.chain([2, 2, 2, 2, *TOKENS]), 44, "2") == 0


def test_a_prefix_that_is_not_on_record_counts_as_fresh(record):
    assert record.stale_tokens(record.chain(TOKENS), 40, "2") == 0


def test_the_oldest_blocks_are_forgotten_first():
    record = KVRecord(block_tokens=4, max_blocks=10)
    first = computed(record, TOKENS, 0, "1")
    second = computed(record, [token + 1 for token in TOKENS], 0, "1")
    assert record.stale_tokens(first, 40, "2") == 0
    assert record.stale_tokens(second, 40, "2") == 40


@given(st.lists(st.integers(0, 5), max_size=60), st.integers(0, 60), st.integers(1, 7))
def test_a_chain_continued_from_any_prefix_is_the_chain_of_the_whole(tokens, cut, block):
    record = KVRecord(block_tokens=block)
    assert record.chain(tokens, record.chain(tokens[:cut])) == record.chain(tokens)
