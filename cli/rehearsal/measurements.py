"""What the meter wrote, read back as numbers: routes, prefixes, training, tools, and the proof."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.proofs import PROOF_SALT

Record = dict[str, Any]


def read_records(folder: Path) -> list[Record]:
    """Every record of one run, in the order in which they were written."""
    records = []
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                records.append(json.loads(line))
            except ValueError as error:
                raise PeriodicError(
                    f"The meter's record {path.name}:{number} is cut off: {error}.",
                    remedy="Look for a killed process in the run's log, and rehearse again.",
                ) from error
    return sorted(records, key=lambda record: record["time"])


def requests_of(records: Iterable[Record]) -> list[Record]:
    """The rollouts' own requests, without the features' proofs."""
    return [
        r
        for r in records
        if r["kind"] == "request" and not str(r["salt"] or "").startswith(PROOF_SALT)
    ]


def step_of(record: Record, phases: Sequence[Mapping[str, Any]]) -> int | None:
    """The step in whose generation phase a record was written."""
    for phase in phases:
        if phase["name"] == "generate" and (
            phase["began"] <= record["time"] <= phase["began"] + phase["seconds"]
        ):
            return phase["step"]
    return None


def measure_routes(requests: Sequence[Record], bytes_per_row: int) -> dict[str, Any]:
    """Bytes and rows of routed experts that crossed the wire; sent: what asked for them.

    bytes_per_row: of one row as int32 (4 x num_layers x top_k); on the wire they are base64.
    """
    per_turn: dict[int, dict[str, int]] = defaultdict(lambda: {"bytes": 0, "rows": 0})
    for request in requests:
        entry = per_turn[request["turn"]]
        entry["bytes"] += request["routes_bytes"]
        entry["rows"] += request["routes_bytes"] // 4 * 3 // bytes_per_row
    return {
        "requests": len(requests),
        "bytes_received": sum(entry["bytes"] for entry in per_turn.values()),
        "bytes_sent": sum(r["routes_request_bytes"] for r in requests),
        "rows_received": sum(entry["rows"] for entry in per_turn.values()),
        "rows_trained": sum(len(r["tokens"]) + len(r["new_tokens"]) - 1 for r in _last(requests)),
        "per_turn": [{"turn": turn, **per_turn[turn]} for turn in sorted(per_turn)],
    }


def _last(requests: Sequence[Record]) -> list[Record]:
    """The last request of each rollout."""
    return list({request["rollout"]: request for request in requests}.values())


def measure_prefixes(
    requests: Sequence[Record], phases: Sequence[Mapping[str, Any]]
) -> list[dict[str, int]]:
    """Per step: prompt tokens, those reused from the KV cache, prefilled again, and stale.

    Prefilled again: a later turn's tokens whose KV its own earlier turns had computed and that
    the cache no longer had. Stale: tokens taken from the cache whose KV was computed under
    another weight version than the one that the rollout started under; not counted as reused.
    """
    ages = KVAges()
    per_step: dict[int, dict[str, int]] = {}
    before: dict[str, Record] = {}
    started: dict[str, str] = {}
    for request in requests:
        step = step_of(request, phases)
        version = started.setdefault(request["rollout"], request["weight_version"])
        cached = request["cached_tokens"]
        entry = per_step.setdefault(
            -1 if step is None else step,
            {"prompt_tokens": 0, "reused": 0, "reprefilled": 0, "stale": 0},
        )
        entry["prompt_tokens"] += len(request["tokens"])
        entry["reprefilled"] += max(_kv_tokens(before.get(request["rollout"])) - cached, 0)
        stale = ages.stale(request, cached, version)
        entry["reused"] += cached - stale
        entry["stale"] += stale
        ages.add(request)
        before[request["rollout"]] = request
    return [{"step": step, **per_step[step]} for step in sorted(per_step)]


def _kv_tokens(request: Record | None) -> int:
    """Tokens of a finished request that have KV: all but the last sampled one."""
    return len(request["tokens"]) + len(request["new_tokens"]) - 1 if request else 0


class KVAges:
    """Under which weight version the KV of each prefix was computed first.

    A cached prefix stays what it was when it was computed, so that the first request that covered
    it, within one salt, tells the version of every later reuse.
    """

    def __init__(self) -> None:
        self._version: dict[tuple[str | None, int], str] = {}

    def _prefixes(
        self, salt: str | None, tokens: Sequence[int]
    ) -> Iterable[tuple[str | None, int]]:
        digest = 0
        for token in tokens:
            digest = hash((digest, token))
            yield salt, digest

    def add(self, request: Record) -> None:
        """Note what a finished request left in the cache."""
        tokens = [*request["tokens"], *request["new_tokens"]][:-1]
        for prefix in self._prefixes(request["salt"], tokens):
            self._version.setdefault(prefix, request["weight_version"])

    def stale(self, request: Record, num_cached: int, version: str) -> int:
        """How many of a request's cached tokens have KV of another version than `version`."""
        prefixes = self._prefixes(request["salt"], request["tokens"][:num_cached])
        return sum(self._version.get(prefix, version) != version for prefix in prefixes)


def measure_training(records: Iterable[Record]) -> list[dict[str, float]]:
    """Per optimizer step: what Miles's own metrics say of it."""
    wanted = {
        "loss": ("train/loss",),
        "grad_norm": ("train/grad_norm",),
        "log_prob_difference": ("train/train_rollout_logprob_abs_diff",),
        "reward": ("rollout/raw_reward",),
    }
    per_step: dict[int, dict[str, float]] = {}
    for record in records:
        metrics = record.get("metrics", {})
        step = metrics.get("train/step", metrics.get("rollout/step"))
        if record["kind"] != "metrics" or step is None:
            continue
        entry = per_step.setdefault(int(step), {})
        for name, keys in wanted.items():
            entry.update((name, metrics[key]) for key in keys if key in metrics)
    return [{"step": step, **per_step[step]} for step in sorted(per_step)]


def measure_tools(records: Iterable[Record]) -> dict[str, Any]:
    """Calls of the rollouts' tool: how many, their seconds, wrong answers and failures."""
    calls = [record for record in records if record["kind"] == "tool_call"]
    answered = [call for call in calls if "failure" not in call]
    seconds = sorted(call["seconds"] for call in answered)
    return {
        "calls": len(answered),
        "wrong": sum(bool(call["wrong"]) for call in answered),
        "failures": [call["failure"] for call in calls if "failure" in call],
        "seconds_p50": statistics.median(seconds) if seconds else None,
        "seconds_p90": seconds[int(0.9 * (len(seconds) - 1))] if seconds else None,
        "seconds_most": seconds[-1] if seconds else None,
    }


FIELDS = {
    "tokens": "tokens",
    "loss_masks": "loss_masks",
    "log_probs": "rollout_log_probs",
    "routed_experts": "rollout_routed_experts",
}


def sample_digests(records: Iterable[Record], step: int) -> dict[str, dict[str, str]]:
    """Sample index to its fields' digests, over all ranks, of the `step`-th rollout."""
    seen: dict[int, int] = defaultdict(int)
    samples: dict[str, dict[str, str]] = {}
    for record in records:
        if record["kind"] == "shard":
            if seen[record["pid"]] == step:
                samples.update(record["samples"])
            seen[record["pid"]] += 1
    return samples


def prove_equal(off: Iterable[Record], on: Iterable[Record], step: int = 0) -> dict[str, Any]:
    """Whether both runs trained on the same bytes in the `step`-th rollout, sample by sample."""
    ours, theirs = sample_digests(on, step), sample_digests(off, step)
    fields = {
        name: bool(ours)
        and ours.keys() == theirs.keys()
        and all(
            ours[i].get(key) is not None and ours[i].get(key) == theirs[i].get(key) for i in ours
        )
        for name, key in FIELDS.items()
    }
    different = [i for i in ours if ours[i] != theirs.get(i)]
    return {
        "rollout": step,
        "samples": len(ours),
        "equal": all(fields.values()),
        "fields": fields,
        "digest": _digest_of_all(ours),
        "detail": f"{len(different)} of {len(ours)} samples differ" if different else "",
    }


def _digest_of_all(samples: Mapping[str, Mapping[str, str]]) -> str:
    text = json.dumps(samples, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
