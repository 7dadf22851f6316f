"""Keys are typed, ranks and ties fall alike everywhere, and a server that leaves moves its own."""

from hypothesis import given
from hypothesis import strategies as st

from miles_periodic.plugins.request_routing.sticky import NAMESPACE, first_by_key, key_of, rank_of

TEXTS = st.text(max_size=12)
URLS = st.sets(st.sampled_from([f"http://10.0.0.{n}:3000" for n in range(9)]), min_size=2)


@given(TEXTS, TEXTS, st.none() | TEXTS, st.none() | TEXTS)
def test_no_two_rollouts_or_clients_share_a_key(one, other, client, other_client):
    same = (one, client) == (other, other_client)
    keys = key_of("session", one, client), key_of("session", other, other_client)
    assert (keys[0] == keys[1]) == same


@given(TEXTS)
def test_every_key_is_typed_and_kinds_are_told_apart(identity):
    assert key_of("rollout", identity).startswith(f"{NAMESPACE}:rollout=")
    assert key_of("rollout", identity) != key_of("session", identity)


@given(st.text(), st.integers(1, 64))
def test_a_rank_is_one_that_there_is(identity, num_ranks):
    assert 0 <= rank_of(identity, num_ranks) < num_ranks


def test_ranks_are_spread():
    ranks = [rank_of(f"sample-{n}", 4) for n in range(400)]
    assert all(ranks.count(rank) > 60 for rank in range(4))


@given(TEXTS, URLS)
def test_a_key_moves_only_when_its_own_server_leaves(key, urls):
    chosen = first_by_key(key, urls)
    assert first_by_key(key, sorted(urls, reverse=True)) == chosen
    for url in urls - {chosen}:
        assert first_by_key(key, urls - {url}) == chosen
