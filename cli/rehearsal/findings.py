"""What the two runs show, in sentences that claim no more than that.

A gain, a loss and no difference are said in the same words whichever run they favour; runs that
did unequal work are compared per trained row, and what was not measured is called that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from miles_periodic.cli.rehearsal.quantities import (
    NOT_MEASURED,
    bytes_text,
    change_text,
    count_text,
    milliseconds_text,
    ratio_text,
    seconds_text,
    share_text,
)
from miles_periodic.cli.rehearsal.result import Prefix, Result, Routes, Run

Outcome = Literal["better", "same", "worse", "mixed", "unknown"]

#: Relative change of rows trained from which two runs did unequal work.
UNEQUAL_WORK = 0.02
#: Relative change of wall time that one run on a shared machine cannot tell from noise.
TIME_NOISE = 0.05
#: Names that a sentence lists before it says how many more there are.
MAX_NAMES = 4


@dataclass(frozen=True, slots=True)
class Finding:
    """One comparison: its sentence, the value of each run, and a caution or price."""

    subject: str
    claim: str
    outcome: Outcome
    off: str = NOT_MEASURED
    on: str = NOT_MEASURED
    measure: str = ""
    caution: str = ""

    @property
    def sentence(self) -> str:
        return f"{self.subject}: {self.claim}"


def routes_finding(result: Result) -> Finding:
    """Bytes of routed experts that the rollout received."""
    off, on = _parts(result, "routes")
    if off is None or on is None or not comparable(result):
        return _unmeasured(
            "Routes", off, on, lambda r: bytes_text(r.bytes_received), "received routes"
        )
    before, after = off.bytes_received, on.bytes_received
    unequal = _unequal_work(off, on)
    if unequal:
        before, after = before / off.rows_trained, after / on.rows_trained
    change = change_text(before, after, "fewer bytes", "more bytes")
    return Finding(
        "Routes",
        f"{change} per trained row" if unequal else change,
        _outcome(before, after),
        bytes_text(off.bytes_received),
        bytes_text(on.bytes_received),
        "received routes",
        _work_caution(off, on) if unequal else _price_of_asking(off, on),
    )


def _price_of_asking(off: Routes, on: Routes) -> str:
    if off.bytes_sent is None or on.bytes_sent is None:
        return ""
    return (
        f"Sent to ask for them: {bytes_text(off.bytes_sent)} off, {bytes_text(on.bytes_sent)} on."
    )


def _unequal_work(off: Routes, on: Routes) -> bool:
    if not (off.rows_trained and on.rows_trained):
        return False
    return _unequal(off.rows_trained, on.rows_trained)


def _unequal(off: int, on: int) -> bool:
    return abs(on - off) > UNEQUAL_WORK * off


def _work_caution(off: Routes, on: Routes) -> str:
    return (
        f"The runs trained on unequal numbers of rows: {count_text(off.rows_trained)} off, "
        f"{count_text(on.rows_trained)} on."
    )


def prefix_finding(result: Result) -> Finding:
    """Prefix tokens reused, computed again, and reused although the weights had changed."""
    off, on = _parts(result, "prefix")
    if off is None or on is None or not comparable(result):
        return _unmeasured("Prefixes", off, on, _reuse, "prompt tokens validly reused")
    changes = [
        _tokens_change(off.total("stale"), on.total("stale"), "stale tokens reused"),
        _tokens_change(off.total("reprefilled"), on.total("reprefilled"), "tokens re-prefilled"),
    ]
    claims = [claim for claim, _ in changes if claim]
    outcomes = {outcome for claim, outcome in changes if claim}
    outcome = "same" if not outcomes else outcomes.pop() if len(outcomes) == 1 else "mixed"
    return Finding(
        "Prefixes",
        "; ".join(claims) or "no difference in stale or re-prefilled tokens",
        outcome,
        _reuse(off),
        _reuse(on),
        "prompt tokens validly reused",
        _reuse_caution(off, on),
    )


def _tokens_change(before: int, after: int, what: str) -> tuple[str, Outcome]:
    if before == after:
        return "", "same"
    return f"{count_text(after) if after else 'no'} {what} instead of {count_text(before)}", (
        _outcome(before, after)
    )


def _reuse(prefix: Prefix) -> str:
    share = share_text(prefix.total("reused"), prefix.total("prompt_tokens"))
    return share or NOT_MEASURED


def _reuse_caution(off: Prefix, on: Prefix) -> str:
    prompts = [p.total("prompt_tokens") for p in (off, on)]
    if _unequal(*prompts):
        return (
            f"The runs had unequal prompts: {count_text(prompts[0])} tokens off, "
            f"{count_text(prompts[1])} on."
        )
    shares = [p.total("reused") / (p.total("prompt_tokens") or 1) for p in (off, on)]
    if shares[1] >= shares[0]:
        return ""
    return f"The price: valid reuse falls to {_reuse(on)} of the prompt tokens, from {_reuse(off)}."


def packing_finding(result: Result) -> Finding:
    """Slot time over its lower bound: 1.00× would be perfect."""
    off, on = _parts(result, "packing")
    if off is None or on is None or None in (off.ratio, on.ratio) or not comparable(result):
        return _unmeasured("Packing", off, on, lambda p: ratio_text(p.ratio), "slot time")
    before, after = round(off.ratio, 2), round(on.ratio, 2)
    if before == after:
        claim = f"no difference, {ratio_text(after)} the lower bound"
    else:
        verdict = "" if after < before else "slower, "
        claim = f"{verdict}{ratio_text(after)} the lower bound instead of {ratio_text(before)}"
    return Finding(
        "Packing",
        claim,
        _outcome(before, after),
        ratio_text(off.ratio),
        ratio_text(on.ratio),
        "slot time over lower bound",
    )


def time_finding(result: Result) -> Finding:
    """Wall time of the two runs."""
    off, on = (_seconds(run) for run in (result.runs.off, result.runs.on))
    if not off or not on or not comparable(result):
        return _unmeasured("Wall time", off or None, on or None, seconds_text, "start to stop")
    change = change_text(off, on, "less with the features on", "more", TIME_NOISE)
    slower = change.endswith(" more")
    claim = f"slower, {change} with the features on" if slower else change
    outcome = "same" if change == "no difference" else _outcome(off, on)
    caution = f"One run each; under {100 * TIME_NOISE:.0f} % counts as no difference."
    return Finding(
        "Wall time", claim, outcome, seconds_text(off), seconds_text(on), "start to stop", caution
    )


def _seconds(run: Run | None) -> float | None:
    if run is None:
        return None
    return run.seconds or sum(phase.seconds for phase in run.phases)


def processes_finding(result: Result) -> Finding:
    """Which bindings reached how many processes."""
    off, on = result.runs.off, result.runs.on
    if on is None:
        claim = "not seen, the run with features on is missing"
        return Finding("Bindings", claim, "unknown", _reach(off), NOT_MEASURED, "bindings applied")
    claim = f"{_reach(on)}; {_reach(off)} with features off"
    silent = on.never_consulted
    caution = f"Applied and never consulted: {_first_names(silent)}." if silent else ""
    return Finding("Bindings", claim, "same", _reach(off), _reach(on), "bindings applied", caution)


def _first_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def _reach(run: Run | None) -> str:
    if run is None:
        return NOT_MEASURED
    names = {name for process in run.processes for name in process.applied}
    reached = sum(bool(process.applied) for process in run.processes)
    if not names:
        return "none"
    return f"{len(names):,} in {_plural(reached, 'process', 'processes')}"


def proof_finding(result: Result) -> Finding:
    """Whether both runs would have trained on the same data."""
    proof = result.proof
    if proof is None:
        return Finding("Training data", "not compared", "unknown")
    if proof.equal:
        claim = f"equal, byte for byte, in {_plural(proof.samples, 'sample')}"
        return Finding("Training data", claim, "same")
    different = [name for name, equal in proof.fields.items() if not equal]
    return Finding("Training data", f"different in {', '.join(different) or 'some field'}", "worse")


def sandboxes_finding(result: Result) -> Finding:
    """Whether the tools ran in sandboxes, and what a call took."""
    if (found := result.sandboxes) is None:
        return Finding("Sandboxes", "not reached", "unknown")
    if found.problem:
        return Finding("Sandboxes", f"failed. {found.problem}", "worse")
    if found.reason:
        claim = f"none, tools ran in the rollouts' own process. {found.reason}"
        return Finding("Sandboxes", claim, "unknown", caution=found.remedy)
    off, on = _parts(result, "tools")
    tools = [part for part in (off, on) if part]
    failed = sum(len(part.failures) + part.wrong for part in tools)
    left = sum(part.left or 0 for part in tools) + len(found.left)
    calls = _plural(sum(part.calls for part in tools), "tool call")
    boxes = _plural(sum(part.sandboxes or 0 for part in tools), "sandbox", "sandboxes")
    claim = f"{calls} in {boxes}, {failed or 'none'} failed, {left or 'none'} left"
    times = [milliseconds_text(part.seconds_p50) if part else NOT_MEASURED for part in (off, on)]
    outcome = "worse" if failed or left else "same"
    return Finding("Sandboxes", claim, outcome, *times, "median time of a tool call")


#: What a rehearsal measures of a feature; a feature that is not here has no measurement yet.
FEATURE_FINDINGS: dict[str, Callable[[Result], Finding]] = {
    "delta-router-replay": routes_finding,
    "kv-preservation": prefix_finding,
    "cost-aware-packing": packing_finding,
}


def saved_by_feature(result: Result) -> dict[str, Finding | None]:
    """Each feature that the run with features on had, and what it changed; None: no measure."""
    features = result.runs.on.features if result.runs.on else ()
    return {
        slug: FEATURE_FINDINGS[slug](result) if slug in FEATURE_FINDINGS else None
        for slug in features
    }


def verdict_sentence(result: Result) -> str:
    """The first line of report and summary."""
    failed = sum(not check.passed for check in result.checks)
    if result.passed:
        return f"Rehearsal passed, {_plural(len(result.checks), 'check')}"
    if failed:
        return f"Rehearsal failed, {failed} of {_plural(len(result.checks), 'check')}"
    return "Rehearsal failed before its checks were complete"


def comparable(result: Result) -> bool:
    """Whether both runs went through the same phases: one that died early saved nothing."""
    off, on = (
        Counter((phase.name, phase.step) for phase in run.phases) if run else None
        for run in (result.runs.off, result.runs.on)
    )
    return off is not None and off == on


def _parts(result: Result, name: str) -> tuple:
    runs = (result.runs.off, result.runs.on)
    return tuple(getattr(run, name) if run else None for run in runs)


def _unmeasured(subject: str, off, on, text: Callable[..., str], measure: str) -> Finding:
    values = [NOT_MEASURED if value is None else text(value) for value in (off, on)]
    match [value == NOT_MEASURED for value in values]:
        case [True, True]:
            claim = "not measured"
        case [False, False]:
            claim = "not comparable, one run did not get as far as the other"
        case [off_is_missing, _]:
            claim = f"not measured with features {'off' if off_is_missing else 'on'}"
    return Finding(subject, claim, "unknown", *values, measure)


def _outcome(before: float, after: float) -> Outcome:
    return "same" if before == after else "better" if after < before else "worse"


def _plural(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"
