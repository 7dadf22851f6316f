"""`miles plan`: what each feature would do here, and the evidence for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from miles_periodic.cli.options import (
    AcceptDrift,
    AllowMissing,
    PluginConfig,
    Plugins,
    PluginSet,
    Selection,
)
from miles_periodic.cli.selected import plan_for, select_features
from miles_periodic.compat.plan import Plan, Row, trees_from
from miles_periodic.hooks.decisions import Inject, Unsupported, word

#: From this width on, a place and what was seen there share a line.
_WIDE = 120
_COLOURS = {"native": "green", "inject": "cyan", "off": "dim", "unsupported": "bold red"}


def plan_command(
    context: typer.Context,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the plan as JSON (schema 1) and nothing else.")
    ] = False,
    tree: Annotated[
        list[str] | None,
        typer.Option(
            "--tree",
            metavar="UPSTREAM=DIR",
            help="Plan against this unpacked wheel or checkout instead of what is installed: the "
            "package folder or the one that holds it. Upstreams: sglang, megatron, miles. "
            "Nothing in it is imported. Repeatable.",
        ),
    ] = None,
    plugins: Plugins = None,
    plugin_config: PluginConfig = None,
    plugin_set: PluginSet = None,
    allow_missing: AllowMissing = None,
    accept_drift: AcceptDrift = None,
) -> None:
    """Show what each feature would do in this environment, and why.

    [green]native[/green]: the upstream has it, declared and consumed; nothing is touched.
    [cyan]inject[/cyan]: the upstream lacks it, and each function that we wrap has a known shape.
    [dim]off[/dim]: not asked for. [red]unsupported[/red]: cannot be had here; what to do is said.

    Sources are read, never imported, and version numbers are not trusted: evidence is a place in
    the sources. Try [bold]miles plan --tree sglang=./unpacked-wheel[/bold].
    """
    before = context.obj if isinstance(context.obj, Selection) else Selection()
    selection = before.with_more(
        Selection(
            plugins=plugins,
            config=plugin_config,
            assignments=tuple(plugin_set or ()),
            allow_missing=tuple(allow_missing or ()),
            accept_drift=tuple(accept_drift or ()),
        )
    )
    selected = select_features(selection, default="periodic")
    plan = plan_for(selected, selection, trees_from(tree or ()))
    show(plan, json_output, only_with=selected.needs_servers())


def show(
    plan: Plan,
    json_output: bool = False,
    console: Console | None = None,
    only_with: Mapping[str, str] | None = None,
) -> None:
    """Print a plan as JSON, or for people: the environment, a table per feature, the verdict.

    only_with: slug to the servers, in words, in whose absence a run goes without the feature.
    """
    if json_output:
        typer.echo(json.dumps(plan.to_json(), indent=2))
        return
    console = console or Console(highlight=False)
    console.print(_surroundings(plan))
    for slug in plan.features:
        console.print()
        console.print(Text(slug, style="bold"))
        console.print(_table(plan.rows_of(slug), wide=console.width >= _WIDE))
    console.print()
    console.print(_verdict(plan, only_with or {}))


def _verdict(plan: Plan, only_with: Mapping[str, str]) -> Text:
    """Whether a launch with this plan would start, and what stands in its way.

    only_with: slug to the servers without which the feature is off, whatever else is missing.
    """
    refused = [slug for slug in plan.refused() if slug not in only_with]
    if refused:
        return Text(f"A launch would be refused: {_listed(refused)} cannot be had.", "bold red")
    gone = {slug for slug in plan.features if plan.off(slug)} | {*plan.dropped(), *plan.refused()}
    on = [slug for slug in plan.features if slug not in gone]
    without = [slug for slug in plan.features if slug in gone]
    gap = f", without {_listed(without)}" if without else ""
    said = Text(f"A launch would start with {_listed(on) or 'no feature'}{gap}.", "bold green")
    for slug in plan.refused():
        said.append(f"\nOne with {only_with[slug]} would be refused: {slug} cannot be had.", "red")
    return said


def _listed(slugs: Sequence[str]) -> str:
    *others, last = slugs or ("",)
    return f"{', '.join(others)} and {last}" if others else last


def _table(rows: tuple[Row, ...], *, wide: bool) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("upstream", no_wrap=True, min_width=8)
    table.add_column("decision", no_wrap=True, min_width=11)
    table.add_column("why", overflow="fold", ratio=1)
    for row in rows:
        decision = word(row.decision)
        table.add_row(row.upstream, Text(decision, style=_COLOURS[decision]), _why(row, wide))
    return table


def _why(row: Row, wide: bool) -> Group:
    decision = row.decision
    below = []
    for evidence in decision.evidence:
        place = f"{evidence.path}:{evidence.line}" if evidence.line else evidence.path
        gap = "  " if wide else "\n"
        below.append(Text.assemble((place, "blue"), gap, (evidence.what, "dim")))
    if isinstance(decision, Inject):
        below.append(Text(f"bindings: {', '.join(decision.bindings)}", style="cyan"))
        if decision.in_sources:
            below.append(Text(f"in the sources: {', '.join(decision.in_sources)}", style="green"))
    if isinstance(decision, Unsupported):
        parts = ("target", "expected", "found")
        below += [Text(f"{p}: {getattr(decision, p)}") for p in parts if getattr(decision, p)]
        below.append(Text(decision.remedy, style="yellow"))
    return Group(Text(decision.reason), *(Padding(text, (0, 0, 0, 2)) for text in below))


def _surroundings(plan: Plan) -> Text:
    """One line of what else decides, and one line per tree that was read."""
    present = [_said(name, entry) for name, entry in plan.environment.items() if entry["present"]]
    absent = [name for name, entry in plan.environment.items() if not entry["present"]]
    lines = [" · ".join(present)]
    if absent:
        lines.append(f"not here: {', '.join(absent)}")
    lines += [f"{upstream}: {tree}" for upstream, tree in plan.trees.items()]
    return Text("\n".join(lines), style="dim")


def _said(name: str, entry: dict[str, Any]) -> str:
    version = entry["version"] or entry.get("provided_by", "of unknown version")
    commit = f" @ {entry['commit'][:10]}" if entry["commit"] else ""
    devices = [f"{d['name']} ({d['capability']})" for d in entry.get("devices", ())]
    return " ".join([name, version + commit, *devices])
