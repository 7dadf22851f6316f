"""Numbers from the meter's records."""

import json

import pytest

from miles_periodic.cli.rehearsal.measurements import (
    measure_prefixes,
    measure_routes,
    measure_tools,
    prove_equal,
    read_records,
    requests_of,
    sample_digests,
)
from miles_periodic.hooks.errors import PeriodicError

PHASES = [{"name": "generate", "step": s, "began": 10.0 * s, "seconds": 9.0} for s in (0, 1)]


def request(
    tokens, new, *, time=1.0, rollout="a", turn=1, cached=0, version="1", salt=None, **parts
):
    return {
        "kind": "request",
        "time": time,
        "rollout": rollout,
        "turn": turn,
        "tokens": tokens,
        "new_tokens": new,
        "cached_tokens": cached,
        "weight_version": version,
        "salt": salt,
        "routes_bytes": 0,
        "routes_request_bytes": 0,
        **parts,
    }


def prefixes(*requests):
    return measure_prefixes(requests, PHASES)


def test_reuse_of_an_earlier_turn_is_neither_stale_nor_prefilled_again():
    (step,) = prefixes(
        request([1, 2, 3], [4]),
        request([1, 2, 3, 4, 5], [6], turn=2, cached=3),
    )
    assert step == {"step": 0, "prompt_tokens": 8, "reused": 3, "reprefilled": 0, "stale": 0}


def test_an_earlier_turn_that_the_cache_lost_is_prefilled_again():
    (step,) = prefixes(
        request([1, 2, 3], [4]),
        request([1, 2, 3, 4, 5], [6], turn=2, cached=1),
    )
    assert step["reprefilled"] == 2


def test_kv_of_older_weights_is_stale_for_a_new_rollout():
    steps = prefixes(
        request([1, 2, 3], [4], version="1"),
        request([1, 2, 3], [7], time=11.0, rollout="b", cached=2, version="2"),
    )
    assert steps[1]["stale"] == 2 and steps[1]["reused"] == 0


def test_kv_under_another_salt_is_not_what_a_rollout_reuses():
    steps = prefixes(
        request([1, 2, 3], [4], version="1", salt="one"),
        request([1, 2, 3], [7], time=11.0, rollout="b", version="2", salt="two"),
        request([1, 2, 3], [8], time=12.0, rollout="c", cached=2, version="2", salt="two"),
    )
    assert steps[1]["stale"] == 0 and steps[1]["reused"] == 2


def test_a_running_rollout_may_reuse_its_own_kv_over_an_update():
    steps = prefixes(
        request([1, 2, 3], [4], version="1"),
        request([1, 2, 3, 4, 5], [6], time=11.0, turn=2, cached=3, version="2"),
    )
    assert steps[1]["stale"] == 0


def test_rows_are_counted_from_base64_with_and_without_padding():
    measured = measure_routes(
        [request([1, 2], [3], routes_bytes=12), request([1, 2], [3], turn=2, routes_bytes=8)], 4
    )
    assert measured["rows_received"] == 3
    assert [entry["turn"] for entry in measured["per_turn"]] == [1, 2]


def test_the_features_proofs_are_no_rollouts():
    proof = request([1], [2], salt="miles-periodic:proof=1")
    assert requests_of([proof, request([1], [2])]) == [request([1], [2])]


def shard(samples, pid=1):
    return {"kind": "shard", "pid": pid, "samples": samples}


def sample(text, **changes):
    fields = ("tokens", "loss_masks", "rollout_log_probs", "rollout_routed_experts")
    return {**dict.fromkeys(fields, text), **changes}


def test_equal_samples_on_other_ranks_are_equal_training_data():
    off = [shard({"0": sample("a")}, 1), shard({"1": sample("b")}, 2)]
    on = [shard({"1": sample("b")}, 3), shard({"0": sample("a")}, 4)]
    assert prove_equal(off, on)["equal"]


def test_one_different_field_is_named():
    off = [shard({"0": sample("a")})]
    on = [shard({"0": sample("a", rollout_routed_experts="z")})]
    proof = prove_equal(off, on)
    assert (
        not proof["equal"] and not proof["fields"]["routed_experts"] and proof["fields"]["tokens"]
    )


def test_no_samples_prove_nothing():
    assert not prove_equal([], [])["equal"]


def test_a_missing_sample_is_not_equal():
    assert not prove_equal(
        [shard({"0": sample("a"), "1": sample("b")})], [shard({"0": sample("a")})]
    )["equal"]


def test_the_second_shard_of_a_process_is_the_second_rollout():
    records = [shard({"0": sample("a")}), shard({"0": sample("b")})]
    assert sample_digests(records, 1)["0"]["tokens"] == "b"


def test_tool_calls_are_counted_timed_and_told_apart_from_failures():
    calls = [{"seconds": 0.25, "wrong": ""}, {"seconds": 0.5, "wrong": "7"}, {"failure": "gone"}]
    tools = measure_tools([{"kind": "tool_call", **call} for call in calls])
    assert (tools["calls"], tools["wrong"], tools["failures"]) == (2, 1, ["gone"])
    assert (tools["seconds_p50"], tools["seconds_most"]) == (0.375, 0.5)


def test_no_tool_call_has_no_time():
    assert measure_tools([])["seconds_p50"] is None


def test_a_record_that_was_cut_off_is_named(tmp_path):
    (tmp_path / "7.jsonl").write_text(json.dumps({"kind": "x", "time": 1}) + '\n{"kind": "requ')
    with pytest.raises(PeriodicError, match=r"7\.jsonl:2"):
        read_records(tmp_path)
