"""Both runs as one JSON value: measurements, checks and a verdict."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from miles_periodic.cli.rehearsal.measurements import (
    measure_prefixes,
    measure_routes,
    measure_tools,
    measure_training,
    prove_equal,
    read_records,
    requests_of,
)
from miles_periodic.cli.rehearsal.one_run import Outcome
from miles_periodic.cli.rehearsal.packing import measure_packing
from miles_periodic.cli.rehearsal.sandboxes import Sandboxes
from miles_periodic.compat.cpu.catalog import STAND_INS
from miles_periodic.compat.cpu.flags import CpuRun
from miles_periodic.compat.cpu.tiny_model import TinyModel
from miles_periodic.compat.plan import Plan
from miles_periodic.hooks.errors import PeriodicError

Result = dict[str, Any]
INT32_BYTES = 4

NOTES = (
    "Real here: Miles, its SGLang server, router and Megatron trainer, Ray, the weight transfer "
    "(over gloo instead of NCCL) and Miles's own checks. What stands in for a GPU is listed, and "
    "is on in both runs alike.",
    "Miles's replay check fails on a CPU for four reasons, and passes with four mends: captured "
    "routes and replayed routes are copied (a CPU tensor moved to the CPU is no copy), padded "
    "micro-batches replay position by position as the router reads them (a fault of Miles with "
    "--qkv-format bshd, not of the CPU), and kv-preservation keeps new rollouts off the KV of "
    "older weights. docs/rehearsal.md has the places.",
    "Two train actors and one server share this machine's cores: times tell phases apart and say "
    "nothing about a GPU. Requests are served one at a time, so that both runs round alike.",
    "The model is random and tiny: rewards and losses show that the loop learns, not how well.",
)


def make_result(
    plan: Plan,
    outcomes: Iterable[Outcome],
    shape: CpuRun,
    boxes: Sandboxes,
    *,
    command: str,
    seconds: float,
) -> Result:
    """The whole result of a rehearsal, also of one that failed on the way."""
    runs: dict[str, Any] = {}
    records: dict[str, list] = {}
    problems: list[str] = []
    for outcome in outcomes:
        problems += [f"features {outcome.name}: {problem}" for problem in outcome.problems]
        try:
            records[outcome.name] = read_records(outcome.records)
            runs[outcome.name] = _run(outcome, records[outcome.name], shape)
        except PeriodicError as error:
            problems.append(f"features {outcome.name}: {error}")
    proof = prove_equal(records["off"], records["on"]) if {"off", "on"} <= records.keys() else None
    checks = _checks(runs, proof, problems, shape) + sandbox_checks(runs, boxes)
    return {
        "schema": 1,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": command,
        "seconds": seconds,
        "machine": _machine(plan),
        "status": "passed" if all(check["passed"] for check in checks) else "failed",
        "checks": checks,
        "plan": plan.to_json(),
        "stand_ins": [{"name": s.name, "module": s.module, "why": s.why} for s in STAND_INS],
        "notes": list(NOTES),
        "proof": proof,
        "sandboxes": boxes.to_json(),
        "runs": runs,
    }


def _run(outcome: Outcome, records: list, shape: CpuRun) -> dict[str, Any]:
    model = TinyModel()
    requests = requests_of(records)
    bytes_per_row = INT32_BYTES * model.num_hidden_layers * model.num_experts_per_tok
    return {
        "features": outcome.features,
        "seconds": outcome.seconds,
        "phases": outcome.phases,
        "processes": outcome.processes,
        "notices": outcome.notices,
        "routes": measure_routes(requests, bytes_per_row),
        "prefix": {"per_step": measure_prefixes(requests, outcome.phases)},
        "packing": measure_packing(records, asdict(model), shape.micro_batch_size),
        "training": {"per_step": measure_training(records)},
        "weight_versions": sorted({r["weight_version"] for r in requests}),
        "never_consulted": outcome.never_consulted,
        "tools": _tools(outcome, records) if shape.tools else None,
    }


def _tools(outcome: Outcome, records: list) -> dict[str, Any]:
    counted = outcome.sandboxes
    of_agent = {"sandboxes": counted.started, "left": counted.left} if counted else {}
    return measure_tools(records) | of_agent


def _checks(
    runs: dict[str, Any], proof: dict[str, Any] | None, problems: list[str], shape: CpuRun
) -> list[dict[str, Any]]:
    checks = [_check("Both runs ended as they should", not problems, "; ".join(problems))]
    for name, run in runs.items():
        steps = len(run["training"]["per_step"])
        whole = steps == shape.num_rollouts
        checks.append(
            _check(
                f"Features {name}: every step trained under Miles's replay and weight checks",
                whole and not problems,
                f"{steps} of {shape.num_rollouts} steps",
            )
        )
    on = runs.get("on")
    if on is None:
        return checks
    if "delta-router-replay" in on["features"] and proof is not None:
        fields = ", ".join(name for name, equal in proof["fields"].items() if equal)
        detail = proof["detail"] or f"{proof['samples']} samples: {fields} equal to the byte"
        checks.append(
            _check("Equal training data with and without the features", proof["equal"], detail)
        )
    if "kv-preservation" in on["features"]:
        stale = sum(step["stale"] for step in on["prefix"]["per_step"])
        checks.append(_check("No new rollout reuses stale KV", stale == 0, f"{stale} stale tokens"))
    idle = on["never_consulted"]
    checks.append(_check("Every binding was consulted", not idle, ", ".join(idle) or "all of them"))
    return checks


def sandbox_checks(runs: dict[str, Any], boxes: Sandboxes) -> list[dict[str, Any]]:
    """What must hold of the sandboxes; no check where none can be had here."""
    name = "Every tool call was answered in a sandbox"
    if boxes.problem:
        return [_check(name, False, boxes.problem)]
    if boxes.reason:
        return []
    tools = [run["tools"] for run in runs.values()]
    num_calls, num_wrong = (sum(t[key] for t in tools) for key in ("calls", "wrong"))
    num_started, num_left = (sum(t.get(key, 0) for t in tools) for key in ("sandboxes", "left"))
    failures = [failure for t in tools for failure in t["failures"]]
    answered = num_calls > 0 and not num_wrong and not failures
    detail = f"{num_calls} calls in {num_started} sandboxes, {num_wrong} with another answer than "
    detail += f"the calculator's, {len(failures)} failures of the infrastructure"
    left = [f"{num_left} sandboxes after the runs"] * bool(num_left) + boxes.left
    kept = "no process, mount, control group or file"
    return [
        _check(name, answered, "; ".join([detail, *failures[:1]])),
        _check("No sandbox is left", not left, ", ".join(left) or kept),
    ]


def _check(name: str, passed: bool, detail: str) -> dict[str, Any]:
    return {"name": name, "passed": bool(passed), "detail": detail}


def _machine(plan: Plan) -> dict[str, Any]:
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    environment = plan.to_json()["environment"]
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": pages,
        "python": platform.python_version(),
        "torch": (environment.get("torch") or {}).get("version"),
        "miles": "miles-rl 0.0.2",
    }
