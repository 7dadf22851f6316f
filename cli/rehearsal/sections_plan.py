"""The parts of the report that say under which conditions: plan, stand-ins, how to repeat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from miles_periodic.cli.markup import Child, Markup, element, table
from miles_periodic.cli.rehearsal.json_words import dicts_in, place_of, text_of
from miles_periodic.cli.rehearsal.result import Result
from miles_periodic.cli.rehearsal.sections import section

DECISIONS = frozenset({"native", "inject", "off", "unsupported"})


def plan(result: Result) -> Markup:
    """Each feature's decision per upstream with its evidence, and the environment."""
    features = dicts_in(result.plan.get("features"))
    if not features:
        return section("plan", "Plan", element("p", "The rehearsal ended before its plan."))
    return section(
        "plan",
        "Plan",
        element("p", "What each feature does to each upstream here, read from the sources."),
        element("div", [_feature(feature) for feature in features], class_="grid three"),
        environment(result.plan.get("environment")),
    )


def _feature(feature: Mapping[str, Any]) -> Markup:
    decisions = [_decision(decision) for decision in dicts_in(feature.get("decisions"))]
    return element(
        "article", element("h3", text_of(feature.get("feature"))), decisions, class_="card feature"
    )


def _decision(decision: Mapping[str, Any]) -> Markup:
    word = text_of(decision.get("decision"))
    remedy = text_of(decision.get("remedy"))
    return element(
        "div",
        element("span", word, class_=f"chip {word}" if word in DECISIONS else "chip"),
        " ",
        element("strong", text_of(decision.get("upstream"))),
        element("p", text_of(decision.get("reason")), class_="quiet"),
        element("p", element("strong", "What to do: "), remedy) if remedy else None,
        _evidence(dicts_in(decision.get("evidence"))),
        class_="decision",
    )


def _evidence(evidence: list[Mapping[str, Any]]) -> Markup | None:
    if not evidence:
        return None
    items = [
        element("li", element("code", place_of(item)), " ", text_of(item.get("what")))
        for item in evidence
    ]
    return element(
        "details",
        element("summary", f"Evidence ({len(items)})"),
        element("ul", items, class_="evidence"),
    )


def environment(found: Any) -> Markup | None:
    """What else decided: every entry of the plan's environment, folded away."""
    if not isinstance(found, Mapping) or not found:
        return None
    rows: list[list[Child]] = [[str(name), text_of(value)] for name, value in found.items()]
    content = table("Environment", ["part", "found"], rows, class_="cards")
    return element("details", element("summary", "Environment of the plan"), content)


def stand_ins(result: Result) -> Markup:
    """Which pieces were not real and why; then everything else worth knowing."""
    rows: list[list[Child]] = [
        [piece.name, element("code", piece.module), piece.why] for piece in result.stand_ins
    ]
    parts: list[Child] = [element("p", "Every piece of the stack was the real one.")]
    if rows:
        parts = [
            table("Pieces that were not real", ["piece", "stand-in", "why"], rows, class_="cards")
        ]
    if result.notes:
        notes = element("ul", [element("li", note) for note in result.notes], class_="notes")
        parts += [element("h4", "Notes"), notes]
    return section("stand-ins", "Stand-ins and notes", element("div", parts, class_="card top"))


def reproduce(result: Result) -> Markup:
    """The command, and what it needs."""
    return section(
        "reproduce",
        "How to reproduce",
        element(
            "p",
            "In a checkout, ",
            element("code", "make rehearse"),
            " sets everything up. This report is of",
        ),
        element("pre", result.command or "a command that was not recorded"),
        element(
            "p",
            "Add ",
            element("code", "--report FILE.html"),
            " for this page and ",
            element("code", "--json FILE"),
            " for its numbers.",
        ),
    )
