"""What a rehearsal found, as typed values; every part may be missing, because rehearsals fail."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from pydantic import BaseModel, ConfigDict, FiniteFloat

#: Controls but tab and newline, and lone surrogates, which no encoding can carry.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class _Part(BaseModel):
    """A frozen part of the result; unknown keys are left for later schemas."""

    model_config = ConfigDict(frozen=True, extra="ignore", coerce_numbers_to_str=True)


class Check(_Part):
    """Something that must hold for the rehearsal to pass."""

    name: str
    passed: bool
    detail: str = ""


class StandIn(_Part):
    """A piece that was not real: its name, the module that stood in, and the reason."""

    name: str
    module: str = ""
    why: str = ""


class Proof(_Part):
    """Whether the training data of one rollout are equal with features off and on."""

    rollout: int | None = None
    samples: int = 0
    equal: bool
    fields: dict[str, bool] = {}
    digest: str = ""
    detail: str = ""


class Phase(_Part):
    """A part of a run; `step` where it is one of an optimizer step."""

    name: str
    step: int | None = None
    seconds: FiniteFloat


class Process(_Part):
    """A process that answered the roll call; `consulted` counts calls per binding.

    in_sources: those of the applied bindings that are patched into the sources that it runs.
    """

    host: str = ""
    pid: int
    role: str = "process"
    title: str = ""
    applied: tuple[str, ...] = ()
    consulted: dict[str, int] = {}
    in_sources: tuple[str, ...] = ()

    @property
    def bindings(self) -> frozenset[str]:
        """Everything that was applied or consulted in the process."""
        return frozenset(self.applied) | frozenset(self.consulted)


class Turn(_Part):
    """Routes that the responses of all rollouts' n-th turns carried, base64 as sent."""

    turn: int
    bytes: int
    rows: int | None = None


class Routes(_Part):
    """Routed experts on the wire; rows are tokens.

    Received is what the servers sent; sent is what the requests spent on asking for it.
    """

    requests: int = 0
    bytes_sent: int | None = None
    bytes_received: int
    rows_received: int | None = None
    rows_trained: int | None = None
    per_turn: tuple[Turn, ...] = ()


class PrefixStep(_Part):
    """Prompt tokens of one step. Reused, re-prefilled and stale tokens are disjoint."""

    step: int
    prompt_tokens: int
    reused: int = 0
    reprefilled: int = 0
    stale: int = 0


class Prefix(_Part):
    """Prompt tokens by what became of their prefix."""

    per_step: tuple[PrefixStep, ...] = ()

    def total(self, kind: str) -> int:
        """The sum of one field over all steps."""
        return sum(getattr(step, kind) for step in self.per_step)


class Slot(_Part):
    """One rank's micro-batch in one slot; its cost is in the unit of the packing."""

    tokens: int
    cost: FiniteFloat


class PackingStep(_Part):
    """One step: `slots[rank][slot]`; every slot lasts as long as its slowest rank."""

    step: int
    slot_time: FiniteFloat
    lower_bound: FiniteFloat
    slots: tuple[tuple[Slot, ...], ...] = ()

    @property
    def ratio(self) -> float | None:
        """Slot time over lower bound; None where there is no bound to compare with."""
        return self.slot_time / self.lower_bound if self.lower_bound > 0 else None


class Packing(_Part):
    """Slots of all steps; `unit` is that of every cost and time in them."""

    unit: str = ""
    per_step: tuple[PackingStep, ...] = ()

    @property
    def ratio(self) -> float | None:
        """Slot time of all steps over their lower bounds; None where nothing was packed."""
        bound = sum(step.lower_bound for step in self.per_step)
        return sum(step.slot_time for step in self.per_step) / bound if bound > 0 else None


class TrainingStep(_Part):
    """What Miles's own metrics say of one optimizer step."""

    step: int
    log_prob_difference: float | None = None
    reward: float | None = None
    loss: float | None = None
    grad_norm: float | None = None


#: Fields of a training step to the words for them.
METRICS = {
    "log_prob_difference": "log-prob difference",
    "reward": "reward",
    "loss": "loss",
    "grad_norm": "gradient norm",
}


class Training(_Part):
    """The optimizer steps of one run."""

    per_step: tuple[TrainingStep, ...] = ()


class Run(_Part):
    """One pass over the same work, with some features on."""

    features: tuple[str, ...] = ()
    seconds: FiniteFloat | None = None
    phases: tuple[Phase, ...] = ()
    processes: tuple[Process, ...] = ()
    routes: Routes | None = None
    prefix: Prefix | None = None
    packing: Packing | None = None
    training: Training | None = None
    weight_versions: tuple[str, ...] = ()
    never_consulted: tuple[str, ...] = ()

    def seconds_by_phase(self) -> dict[str, float]:
        """Seconds per phase name, over all steps, in the order of first occurrence."""
        totals: Counter[str] = Counter()
        for phase in self.phases:
            totals[phase.name] += phase.seconds
        return dict(totals)


class Runs(_Part):
    """Both runs; one is missing where the rehearsal ended before it."""

    off: Run | None = None
    on: Run | None = None


class Result(_Part):
    """One rehearsal. `plan` stays as `miles plan --json` printed it."""

    created: str = ""
    command: str = ""
    seconds: float | None = None
    machine: dict[str, Any] = {}
    status: str
    checks: tuple[Check, ...] = ()
    plan: dict[str, Any] = {}
    stand_ins: tuple[StandIn, ...] = ()
    notes: tuple[str, ...] = ()
    proof: Proof | None = None
    runs: Runs = Runs()

    @property
    def passed(self) -> bool:
        """Passed as a whole and in every check: one failed check is a failed rehearsal."""
        return self.status == "passed" and all(check.passed for check in self.checks)


def read_result(result: dict[str, Any]) -> Result:
    """The typed values of a JSON-able dict; raises pydantic.ValidationError naming the field."""
    return Result.model_validate(_cleaned(result))


def _cleaned(value: Any) -> Any:
    """Without nulls, which are parts that were not measured, and without control characters.

    Titles of processes are anybody's bytes: they must not steer a terminal or break a document.
    """
    if isinstance(value, str):
        return _CONTROL.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_cleaned(item) for item in value]
    return value
