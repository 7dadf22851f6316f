"""The parts of the report that say what happened: verdict, savings, proof, pictures."""

from __future__ import annotations

from miles_periodic.cli.markup import Child, Markup, element, table
from miles_periodic.cli.rehearsal.charts import RUN_NAMES, RUNS, hatching
from miles_periodic.cli.rehearsal.charts_packing import packing_picture
from miles_periodic.cli.rehearsal.charts_processes import processes_picture
from miles_periodic.cli.rehearsal.charts_time import time_picture
from miles_periodic.cli.rehearsal.charts_traffic import prefix_picture, routes_picture
from miles_periodic.cli.rehearsal.findings import (
    Finding,
    proof_finding,
    sandboxes_finding,
    saved_by_feature,
    verdict_sentence,
)
from miles_periodic.cli.rehearsal.json_words import machine_facts
from miles_periodic.cli.rehearsal.quantities import (
    count_text,
    milliseconds_text,
    number_text,
    seconds_text,
    time_text,
)
from miles_periodic.cli.rehearsal.result import (
    METRICS,
    Check,
    Process,
    Result,
    Tools,
    TrainingStep,
)


def section(name: str, title: str, *content: Child) -> Markup:
    """A part of the report under its heading."""
    heading = element("h2", title, id=f"{name}-heading")
    return element("section", heading, *content, id=name, aria_labelledby=f"{name}-heading")


def mark(good: bool) -> Markup:
    """A tick or a cross, for eyes and for screen readers."""
    return element(
        "span",
        "✓" if good else "✕",
        class_="mark good" if good else "mark bad",
        role="img",
        aria_label="passed" if good else "failed",
    )


def verdict(result: Result) -> Markup:
    """The head of the report: passed or failed, when, where, how long."""
    facts = [
        time_text(result.created),
        seconds_text(result.seconds),
        *machine_facts(result.machine),
    ]
    return element(
        "header",
        element("h1", mark(result.passed), verdict_sentence(result)),
        element("ul", [element("li", fact) for fact in facts if fact], class_="facts"),
    )


def checks(result: Result) -> Markup:
    """Every check with its detail, those that failed first."""
    ordered = sorted(result.checks, key=lambda check: check.passed)
    if not ordered:
        return section("checks", "Checks", element("p", "No check was reached."))
    items = [_check(check) for check in ordered]
    return section(
        "checks", "Checks", element("div", element("ul", items, class_="verdicts"), class_="card")
    )


def _check(check: Check) -> Markup:
    detail = element("p", check.detail) if check.detail else None
    return element("li", mark(check.passed), element("strong", check.name), detail)


def savings(result: Result) -> Markup:
    """A card per feature with what it changed against the same run without it."""
    cards = [_card(slug, finding) for slug, finding in saved_by_feature(result).items()]
    if not cards:
        return section("saved", "What each feature saved", element("p", "No feature was on."))
    return section(
        "saved",
        "What each feature saved",
        element("p", "The same work, once with the features off and once with them on."),
        element("div", cards, class_="grid three"),
    )


def _card(slug: str, finding: Finding | None) -> Markup:
    if finding is None:
        words = element("p", "A rehearsal has no measure for this feature.", class_="quiet")
        return element("article", element("h3", slug), words, class_="card saved")
    values = [element("dt", "off"), element("dd", finding.off)]
    values += [element("dt", "on"), element("dd", finding.on)]
    return element(
        "article",
        element("h3", slug),
        element("p", finding.claim[:1].upper() + finding.claim[1:], class_="claim"),
        element("p", finding.measure.capitalize(), class_="quiet"),
        element("dl", values, class_="pair"),
        element("p", finding.caution, class_="caution") if finding.caution else None,
        class_="card saved",
        data_outcome=finding.outcome,
    )


def proof(result: Result) -> Markup:
    """The training data of both runs compared, and the metrics that came of them."""
    finding = proof_finding(result)
    sign = mark(result.proof.equal) if result.proof else None
    parts: list[Child] = [element("h3", sign, finding.sentence)]
    if found := result.proof:
        names = [element("li", mark(equal), name) for name, equal in found.fields.items()]
        rollout = "" if found.rollout is None else f"Rollout {found.rollout}. "
        parts += [
            element("p", rollout + found.detail, class_="quiet"),
            element("ul", names, class_="fields") if names else None,
            element("p", "Digest ", element("code", found.digest), class_="quiet")
            if found.digest
            else None,
        ]
    return section(
        "proof",
        "Training data, off against on",
        element("div", parts, class_="card"),
        training(result),
    )


def training(result: Result) -> Markup | None:
    """Metrics of each training step, off and on one below the other."""
    steps = [
        (step.step, run, step)
        for run in RUNS
        if (part := getattr(result.runs, run)) and part.training
        for step in part.training.per_step
    ]
    if not steps:
        return None
    rows = [_training_row(run, step) for _, run, step in sorted(steps, key=lambda s: s[:2])]
    head = ["step", *METRICS.values()]
    content = table("Training steps", head, rows, {1, 2, 3, 4}, class_="cards")
    card = element("div", content, _weight_versions(result), class_="card")
    return element("div", card, class_="grid one")


def _training_row(run: str, step: TrainingStep) -> list[Child]:
    values = [number_text(getattr(step, metric)) for metric in METRICS]
    return [f"step {step.step}, {run}", *values]


def _weight_versions(result: Result) -> list[Markup]:
    served = {
        RUN_NAMES[run]: ", ".join(part.weight_versions)
        for run in RUNS
        if (part := getattr(result.runs, run)) and part.weight_versions
    }
    if len(served) == 2 and len(set(served.values())) == 1:
        served = {"features off and on": next(iter(served.values()))}
    return [
        element("p", f"Weight versions served with {run}: {versions}.", class_="quiet")
        for run, versions in served.items()
    ]


def pictures(result: Result) -> Markup:
    """All pictures, each under its takeaway."""
    drawings = [
        routes_picture(result),
        prefix_picture(result),
        packing_picture(result),
        time_picture(result),
        processes_picture(result),
    ]
    return section("pictures", "In pictures", hatching(), element("div", drawings, class_="grid"))


def sandboxes(result: Result) -> Markup:
    """Where the rollouts' tools ran, and what that took and left."""
    finding, found = sandboxes_finding(result), result.sandboxes
    lines: list[Child] = [element("h3", finding.sentence)]
    if finding.caution:
        lines.append(element("p", element("strong", "What to do: "), finding.caution))
    if found and found.version and not found.reason:
        words = f"runsc {found.version}, platform {found.platform}, an agent of the rehearsal's own"
        lines.append(element("p", words, class_="quiet"))
    runs = [run for run in RUNS if (part := getattr(result.runs, run)) and part.tools]
    if runs:
        columns = [_tools_column(getattr(result.runs, run).tools) for run in runs]
        rows: list[list[Child]] = [
            [what, *cells] for what, *cells in zip(_TOOLS, *columns, strict=True)
        ]
        head: list[Child] = ["", *(RUN_NAMES[run] for run in runs)]
        lines.append(table("Tool calls of the rollouts", head, rows, {1, 2}, class_="cards"))
    return section("sandboxes", "Sandboxes", element("div", lines, class_="card top"))


_TOOLS = (
    "sandboxes",
    "tool calls answered",
    "answers other than the calculator's",
    "failures of the infrastructure",
    "median time of a call",
    "90 % of calls took at most",
    "slowest call",
    "sandboxes left",
)


def _tools_column(tools: Tools) -> list[Child]:
    times = (tools.seconds_p50, tools.seconds_p90, tools.seconds_most)
    return [
        count_text(tools.sandboxes),
        count_text(tools.calls),
        count_text(tools.wrong),
        count_text(len(tools.failures)),
        *map(milliseconds_text, times),
        count_text(tools.left),
    ]


def _applied_text(process: Process) -> str:
    patched = len(process.in_sources)
    remark = f", {count_text(patched)} patched in the sources" if patched else ""
    return count_text(len(process.applied)) + remark


def processes(result: Result) -> Markup:
    """Every process of both runs with its title and the number of bindings it applied."""
    parts = [
        table(
            f"Processes with {RUN_NAMES[run]}",
            ["role", "pid", "host", "title", "applied", "consulted"],
            [
                [
                    process.role,
                    str(process.pid),
                    process.host,
                    element("code", process.title),
                    _applied_text(process),
                    count_text(sum(process.consulted.values())),
                ]
                for process in part.processes
            ],
            {4, 5},
            class_="cards",
        )
        for run in RUNS
        if (part := getattr(result.runs, run)) and part.processes
    ]
    body = [element("div", part, class_="card") for part in reversed(parts)]
    shown = element("div", body, class_="grid one") if body else element("p", "None reported.")
    return section("processes", "Processes", shown)
