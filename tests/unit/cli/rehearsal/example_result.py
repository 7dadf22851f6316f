"""Results of rehearsals as the command writes them: one that passed, one that failed midway."""

from __future__ import annotations

from typing import Any

FEATURES = ["delta-router-replay", "kv-preservation", "cost-aware-packing"]


def passed_result() -> dict[str, Any]:
    """Two steps, two data-parallel ranks, three turns, every feature on."""
    return {
        "schema": 1,
        "created": "2026-11-30T04:00:00Z",
        "command": "miles --plugins periodic rehearse --steps 2 --report rehearsal.html",
        "seconds": 283.4,
        "machine": {
            "cores": 2,
            "memory_bytes": 25_000_000_000,
            "python": "3.11.7",
            "torch": "2.14.1",
            "miles": "miles-rl 0.0.2",
        },
        "status": "passed",
        "checks": _checks(),
        "plan": {
            "schema": 1,
            "environment": _environment(),
            "features": _plan_features(),
        },
        "stand_ins": [
            {
                "name": "CUDA device calls",
                "module": "miles_periodic.compat.cpu.device",
                "why": "The trainer asks for streams and memory statistics of a device that a "
                "laptop does not have.",
            },
            {
                "name": "NCCL groups",
                "module": "miles_periodic.compat.cpu.groups",
                "why": "gloo carries the same collectives between processes on one host.",
            },
        ],
        "notes": [
            "pip's Rust router drops routed experts from responses; this run went to the "
            "servers directly, after a round trip had shown it.",
            "The model has 2 layers and 8 experts with random weights: rewards say nothing.",
        ],
        "proof": {
            "rollout": 0,
            "samples": 16,
            "equal": True,
            "fields": {"tokens": True, "log_probs": True, "routed_experts": True},
            "digest": "sha256:3f9a1c04b7e25d68aa01f6c2d9be7743520c8e1b6f4a97d3158e0b62c7fd49a0",
            "detail": "Every sample of the rollout, compared field by field as bytes.",
        },
        "sandboxes": {
            "reason": "",
            "remedy": "",
            "problem": "",
            "platform": "systrap",
            "version": "release-20261026.0",
            "left": [],
        },
        "runs": {"off": _run_off(), "on": _run_on()},
    }


def failed_result() -> dict[str, Any]:
    """A server died in the run with features on: that run is partial, nothing was proved."""
    result = passed_result()
    died = "sglang::scheduler (pid 20411) ended with signal 9 during generate of step 0."
    return result | {
        "status": "failed",
        "seconds": 171.9,
        "checks": [
            {"name": "Roll call", "passed": True, "detail": "All bindings are in place."},
            {"name": "Both runs ended", "passed": False, "detail": died},
        ],
        "notes": ["Everything that the rehearsal had started was ended."],
        "proof": None,
        "runs": {
            "off": result["runs"]["off"],
            "on": {
                "features": FEATURES,
                "seconds": 48.8,
                "phases": result["runs"]["on"]["phases"][:2],
                "processes": result["runs"]["on"]["processes"][:2],
            },
        },
    }


def _checks() -> list[dict[str, Any]]:
    return [
        {
            "name": "Roll call",
            "passed": True,
            "detail": "9 bindings in 4 processes; none failed, none was replaced later.",
        },
        {
            "name": "Miles's replay check (--ci-test)",
            "passed": True,
            "detail": "Every token was trained with the experts that sampled it.",
        },
        {
            "name": "Miles's weight check (--check-weight-update-equal)",
            "passed": True,
            "detail": "Servers held the trainer's weights after each of 3 updates.",
        },
        {
            "name": "Nothing left running",
            "passed": True,
            "detail": "23 processes and 1 Ray session were ended.",
        },
    ]


def _environment() -> dict[str, Any]:
    return {
        "python": {"present": True, "version": "3.11.7"},
        "torch": {"present": True, "version": "2.14.1"},
        "cuda": {"present": False},
        "transformer-engine": {"present": False},
        "deep_ep": {"present": False},
        "ray": {"present": True, "version": "2.56.0"},
        "runsc": {"present": False},
        "slurm": {"present": False},
    }


def _plan_features() -> list[dict[str, Any]]:
    return [
        _feature(
            "delta-router-replay",
            _decision(
                "sglang",
                "native",
                "The server reads routed_experts_start_len and answers from that row on.",
                ("sglang/srt/managers/scheduler_output_processor_mixin.py", 1184, "read"),
                ("sglang/srt/managers/io_struct.py", 212, "declared"),
            ),
            _decision(
                "miles",
                "inject",
                "The client asks for all rows in each turn and never sends a start.",
                ("miles/rollout/generate_utils/generate_endpoint_utils.py", 88, "request built"),
            ),
        ),
        _feature(
            "kv-preservation",
            _decision(
                "sglang",
                "native",
                "Requests carry extra_key and the radix tree keys on it.",
                ("sglang/srt/mem_cache/radix_cache.py", 97, "consumed"),
            ),
            _decision(
                "miles",
                "inject",
                "Weights are updated in place; prefixes carry no version.",
                ("miles/utils/http_utils.py", 141, "request sent"),
            ),
        ),
        _feature(
            "cost-aware-packing",
            _decision(
                "miles",
                "inject",
                "Samples are dealt to ranks in turn, by count.",
                ("miles/ray/rollout.py", 655, "split"),
            ),
            _decision("megatron", "off", "Nothing of this feature is decided here."),
        ),
    ]


def _feature(slug: str, *decisions: dict[str, Any]) -> dict[str, Any]:
    return {"feature": slug, "decisions": list(decisions)}


def _decision(upstream: str, decision: str, reason: str, *evidence: tuple) -> dict[str, Any]:
    places = [{"path": path, "line": line, "what": what} for path, line, what in evidence]
    return {"upstream": upstream, "decision": decision, "reason": reason, "evidence": places}


def _run_off() -> dict[str, Any]:
    return {
        "features": [],
        "seconds": 142.6,
        "phases": _phases(38.1, 4.9, (17.2, 16.4), (21.3, 20.6), (4.4, 4.2), 6.1, 9.4),
        "processes": [],
        "routes": _routes((73_216, 161_792, 252_416), 48, (572, 1264, 1972), 2032),
        "prefix": {"per_step": [_prefix(0, 3968, 2304, 0, 0), _prefix(1, 4112, 1408, 0, 1216)]},
        "packing": {
            "unit": "FLOPs",
            "per_step": [
                _packing(0, [[[412, 236], [198, 145]], [[350, 120], [168, 174]]]),
                _packing(1, [[[390, 155], [241, 96]], [[302, 150], [210, 132]]]),
            ],
        },
        "training": _training(0.0041, 0.0043),
        "tools": _tools(0.0412, 0.0634),
        "weight_versions": ["1", "2", "3"],
    }


def _run_on() -> dict[str, Any]:
    return {
        "features": FEATURES,
        "seconds": 139.8,
        "phases": _phases(38.9, 4.8, (16.4, 16.1), (20.2, 19.8), (4.3, 4.3), 5.8, 9.2),
        "processes": _processes(),
        "routes": _routes((36_608, 44_288, 45_312), 48, (572, 692, 708), 2032),
        "prefix": {"per_step": [_prefix(0, 3968, 2304, 0, 0), _prefix(1, 4112, 2432, 0, 0)]},
        "packing": {
            "unit": "FLOPs",
            "per_step": [
                _packing(0, [[[412, 168], [198, 120]], [[350, 236], [174, 145]]]),
                _packing(1, [[[390, 132], [210, 96]], [[302, 241], [155, 150]]]),
            ],
        },
        "training": _training(0.0041, 0.0042),
        "tools": _tools(0.0398, 0.0602),
        "weight_versions": ["1", "2", "3"],
        "never_consulted": ["rollout/refactored-scope"],
    }


def _tools(median, most) -> dict[str, Any]:
    return {
        "calls": 97,
        "wrong": 0,
        "failures": [],
        "seconds_p50": median,
        "seconds_p90": most * 0.8,
        "seconds_most": most,
        "sandboxes": 32,
        "left": 0,
    }


def _phases(start, first, generate, train, update, save, stop) -> list[dict[str, Any]]:
    phases = [
        {"name": "start", "step": None, "seconds": start},
        {"name": "first weight update", "step": None, "seconds": first},
    ]
    for step in range(len(generate)):
        phases += [
            {"name": "generate", "step": step, "seconds": generate[step]},
            {"name": "train", "step": step, "seconds": train[step]},
            {"name": "weight update", "step": step, "seconds": update[step]},
        ]
    return [
        *phases,
        {"name": "save", "step": None, "seconds": save},
        {"name": "stop", "step": None, "seconds": stop},
    ]


def _processes() -> list[dict[str, Any]]:
    rollout = {
        "rollout/request": 48,
        "rollout/routed-experts": 48,
        "rollout/scope": 32,
        "training/split": 2,
    }
    trainer = {"training/micro-batches": 4, "training/actor-replay-fill": 2}
    driver = {"launch/arguments": 1, "launch/muster": 1}
    return [
        _process(20118, "driver", "python -m miles_periodic.compat.train", driver),
        _process(
            20390, "rollout-manager", "ray::RolloutManager", rollout, "rollout/refactored-scope"
        ),
        _process(20402, "trainer", "ray::MegatronTrainRayActor", trainer),
        _process(20403, "trainer", "ray::MegatronTrainRayActor", trainer),
    ]


def _process(pid: int, role: str, title: str, consulted: dict[str, int], *silent: str):
    return {
        "host": "laptop",
        "pid": pid,
        "role": role,
        "title": title,
        "applied": sorted([*consulted, *silent]),
        "consulted": consulted,
    }


def _routes(num_bytes, requests, rows, rows_trained) -> dict[str, Any]:
    return {
        "requests": requests,
        "bytes_received": sum(num_bytes),
        "rows_received": sum(rows),
        "rows_trained": rows_trained,
        "per_turn": [
            {"turn": turn, "bytes": b, "rows": r}
            for turn, (b, r) in enumerate(zip(num_bytes, rows, strict=True), start=1)
        ],
    }


def _prefix(step, prompt_tokens, reused, reprefilled, stale) -> dict[str, int]:
    return {
        "step": step,
        "prompt_tokens": prompt_tokens,
        "reused": reused,
        "reprefilled": reprefilled,
        "stale": stale,
    }


def _packing(step: int, samples: list[list[list[int]]]) -> dict[str, Any]:
    """Slots of each rank, given the lengths of the samples in them, and what follows."""
    slots = [[_slot(lengths) for lengths in rank] for rank in samples]
    costs = [[slot["cost"] for slot in rank] for rank in slots]
    slot_time = sum(max(slot) for slot in zip(*costs, strict=True))
    lower_bound = sum(map(sum, costs)) / len(costs)
    return {
        "step": step,
        "slot_time": slot_time,
        "lower_bound": lower_bound,
        "ratio": slot_time / lower_bound,
        "slots": slots,
    }


def _slot(lengths: list[int]) -> dict[str, float]:
    """A micro-batch: each sample costs its length, and its square for attention."""
    return {"tokens": sum(lengths), "cost": sum(1.6e6 * n + 2400.0 * n * n for n in lengths)}


def _training(*differences: float) -> dict[str, Any]:
    return {
        "per_step": [
            {
                "step": step,
                "log_prob_difference": difference,
                "reward": 0.5 + 0.0625 * step,
                "loss": 0.0112 - 0.0009 * step,
                "grad_norm": 0.312 + 0.011 * step,
            }
            for step, difference in enumerate(differences)
        ]
    }
