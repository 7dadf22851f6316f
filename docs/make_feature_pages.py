"""Writes features/*.md from what the features declare: `python docs/make_feature_pages.py`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from miles_periodic.compat.catalog import HOOK_BINDINGS
from miles_periodic.compat.matrix.facts import Facts, recorded
from miles_periodic.compat.matrix.releases import Release, known_releases
from miles_periodic.hooks.decisions import UPSTREAMS
from miles_periodic.hooks.feature import Feature
from miles_periodic.plugins import features
from miles_periodic.upstream.rows import Row, ledger

DOCS = Path(__file__).parent
PLUGINS = DOCS.parent / "plugins"
#: What shows that a section of benchmarks.md measures a feature, besides the feature's name.
MEASURED_BY = {
    "delta-router-replay": ("bench router-replay", "router_replay_throughput"),
    "decode-radix-cache": ("bench decode-radix",),
    "request-routing": ("bench request-routing",),
    "cost-aware-packing": ("bench packing",),
    "chunked-optimizer-offload": ("bench offload",),
    "fused-linear-cross-entropy": ("bench loss",),
    "chunked-checkpoint-staging": ("bench checkpoint-staging",),
    "fast-resharding": ("bench reshard",),
}
#: Lines of tables up to which a section is shown as a whole, and rows of a longer one.
MAX_LINES = 24
MAX_ROWS = 8
INDEX = """# Features

Each page is made from the feature's own declaration, the ledger, the facts on file and the
benchmarks. `--plugins periodic` switches on those that are on by default; the others are on where
they are asked for by name.

| feature | what a run gains | by default |
|---|---|---|
"""


def pages() -> dict[str, str]:
    """File name below `docs/` to text: one page per feature, and their index."""
    facts = [(release, recorded(release.label)) for release in known_releases()]
    on_file = [(release, found) for release, found in facts if found is not None]
    made = {f"features/{f.slug}.md": page(f, on_file) for f in features()}
    rows = [
        f"| [{f.slug}]({f.slug}.md) | {f.why} | {'on' if f.default else 'by name'} |\n"
        for f in features()
    ]
    return {"features/index.md": INDEX + "".join(rows), **made}


def page(feature: type[Feature], facts: Sequence[tuple[Release, Facts]]) -> str:
    """One feature's page."""
    readme = _sections((PLUGINS / feature.slug.replace("-", "_") / "README.md").read_text("utf-8"))
    how = re.sub(r"^\| setting \|.*\n(\|.*\n)+\n?", "", readme["How"] + "\n", flags=re.MULTILINE)
    parts = [
        f"# {feature.slug}\n\n{feature.why}\n\n{_switch(feature)}",
        f"## Why\n\n{readme['Why']}",
        f"## How\n\n{how.strip()}",
        f"## Settings\n\n{_settings(feature)}",
        f"## Hooks\n\n{_hooks(feature)}",
        f"## Where it stands\n\n{_standing(feature.slug, facts)}",
        f"## Changes upstream\n\n{_changes(feature)}",
        f"## Exit\n\nThe feature goes when this is true: {feature.exit}",
        f"## Numbers\n\n{_numbers(feature.slug)}",
    ]
    return "\n\n".join(parts) + "\n"


def _sections(text: str) -> dict[str, str]:
    """Heading of the second level to what stands below it."""
    pieces = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    return {name: body.strip("\n") for name, body in zip(pieces[1::2], pieces[2::2], strict=True)}


def _switch(feature: type[Feature]) -> str:
    """The command line that switches it on, and what it needs and excludes."""
    said = ["On by default." if feature.default else "On only where it is asked for by name."]
    if feature.server_roles:
        said.append(f"Off in a run without {' or '.join(feature.server_roles)} servers.")
    if feature.requires:
        said.append(f"Needs {', '.join(feature.requires)}.")
    if feature.conflicts:
        said.append(f"Cannot be on together with {', '.join(feature.conflicts)}.")
    line = f"miles --plugins periodic:{feature.slug} train_async.py …"
    return f"```\n{line}\n```\n\n{' '.join(said)}"


def _settings(feature: type[Feature]) -> str:
    rows = [
        f"| `{name}` | {_default(field)} | {_one_line(field.description)}{_limits(field)} |"
        for name, field in feature.settings_model.model_fields.items()
    ]
    first = next(iter(feature.settings_model.model_fields), None)
    if first is None:
        return "None."
    variable = f"MILES_PERIODIC_SET__{feature.slug.upper().replace('-', '_')}__{first.upper()}"
    ways = (
        f"A table `[{feature.slug}]` of a `--plugin-config` file, `--plugin-set "
        f"{feature.slug}.{first}=…`, or the environment variable `{variable}`."
    )
    return "\n".join([ways, "", "| setting | default | meaning |", "|---|---|---|", *rows])


def _default(field: Any) -> str:
    if field.default is None:
        return "where known" if "bool" in str(field.annotation) else "none"
    value = getattr(field.default, "value", field.default)
    return f"`{json.dumps(value)}`"


def _limits(field: Any) -> str:
    words = {"ge": "At least", "gt": "Above", "le": "At most", "lt": "Below"}
    said = [
        f" {words[name]} {getattr(limit, name):,g}."
        for limit in field.metadata
        for name in words
        if getattr(limit, name, None) is not None
    ]
    return "".join(said)


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _hooks(feature: type[Feature]) -> str:
    named = [f"[{hook}](../hooks.md#{hook})" for hook in HOOK_BINDINGS if hasattr(feature, hook)]
    return f"It implements {', '.join(named)}."


def _standing(slug: str, facts: Sequence[tuple[Release, Facts]]) -> str:
    lines = ["| upstream | releases | decision |", "|---|---|---|"]
    for upstream in UPSTREAMS:
        known = [
            (release, found.decisions[upstream][slug].decision)
            for release, found in facts
            if slug in found.decisions.get(upstream, {})
        ]
        for (name, decision), group in groupby(known, lambda k: (k[0].distribution, k[1])):
            versions = [release.version for release, _ in group]
            span = versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"
            lines.append(f"| {upstream} | {name} {span} | {decision} |")
    reasons = "Reasons and bindings: [compatibility](../compatibility.md)."
    return "\n".join([*lines, "", reasons])


def _changes(feature: type[Feature]) -> str:
    rows = [ledger()[key] for key in feature.pull_requests]
    if not rows:
        return "Nobody has proposed it to Miles, SGLang or NVIDIA's Megatron by a number."
    head = "| change | what a tree that has it does | state | first release |\n|---|---|---|---|"
    return "\n".join([head, *map(_change, rows)])


def _change(row: Row) -> str:
    off = f"; turns off {', '.join(f'`{name}`' for name in row.replaces)}" if row.replaces else ""
    described = _one_line(row.description).replace("_", "\\_").replace("<", "\\<")
    state = f"{row.state} | {row.applied_upstream or '–'}"
    return f"| [{row.key}]({row.url}) | {described}{off} | {state} |"


def _numbers(slug: str) -> str:
    marks = (slug, *MEASURED_BY.get(slug, ()))
    sections = _sections((DOCS / "benchmarks.md").read_text(encoding="utf-8"))
    found = [
        f"### [{heading}](../benchmarks.md#{_anchor(heading)})\n\n{_beginning(body)}"
        for heading, body in sections.items()
        if any(mark in body for mark in marks)
    ]
    return "\n\n".join(found) or "No measurement of it is on file."


def _anchor(heading: str) -> str:
    """The anchor that a heading gets, on the site as in a repository's view."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def _beginning(section: str) -> str:
    """A section; of a long one the first rows of its first table, and what stands before it."""
    lines = section.splitlines()
    if sum(line.startswith("|") for line in lines) <= MAX_LINES:
        return section.strip()
    shown = list(_to_end_of_table(lines))
    start = next((n for n, line in enumerate(shown) if line.startswith("|")), len(shown))
    rows = shown[start + 2 :]
    if len(rows) <= MAX_ROWS:
        return "\n".join(shown).strip()
    kept = [*shown[: start + 2], *rows[:MAX_ROWS]]
    return "\n".join([*kept, "", f"The first {MAX_ROWS} of {len(rows)} rows."]).strip()


def _to_end_of_table(lines: Sequence[str]) -> Iterator[str]:
    in_table = False
    for line in lines:
        if in_table and not line.startswith("|"):
            return
        in_table = line.startswith("|")
        yield line


if __name__ == "__main__":
    for stale in (DOCS / "features").glob("*.md"):
        stale.unlink()
    (DOCS / "features").mkdir(exist_ok=True)
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
