"""The options that select plugins, settings, exceptions and releases, for whichever command."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

_PANEL = "Plugins"

Plugins = Annotated[
    str | None,
    typer.Option(
        "--plugins",
        metavar="PLUGIN[:FEATURE,-FEATURE…]",
        help="Which features are on: [bold]periodic[/bold] for its default set, "
        "[bold]periodic:delta-router-replay[/bold] for one, [bold]periodic:-kv-preservation[/bold] "
        "for all but one; several plugins are joined by commas.",
        rich_help_panel=_PANEL,
    ),
]
PluginConfig = Annotated[
    Path | None,
    typer.Option(
        "--plugin-config",
        metavar="FILE",
        help="Settings in TOML, one table per feature.",
        rich_help_panel=_PANEL,
    ),
]
PluginSet = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin-set",
        metavar="FEATURE.KEY=VALUE",
        help="One setting; wins over environment and file. Repeatable.",
        rich_help_panel=_PANEL,
    ),
]
AllowMissing = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-missing",
        metavar="FEATURE",
        help="Run without this feature (or plugin) where it cannot be had here. Repeatable.",
        rich_help_panel=_PANEL,
    ),
]
AcceptDrift = Annotated[
    list[str] | None,
    typer.Option(
        "--accept-drift",
        metavar="FEATURE",
        help="Bind this feature to targets whose content is not a known shape; the plan records "
        "it. Repeatable.",
        rich_help_panel=_PANEL,
    ),
]
#: Of the commands that go over the matrix.
Releases = Annotated[
    list[str] | None,
    typer.Option(
        "--release",
        metavar="DIST==VERSION",
        help="Only this release of the matrix. Repeatable. Default: all of them.",
    ),
]


@dataclass(frozen=True, slots=True)
class Selection:
    """What the command line said about plugins, before anything was looked up."""

    plugins: str | None = None
    config: Path | None = None
    assignments: tuple[str, ...] = ()
    allow_missing: tuple[str, ...] = ()
    accept_drift: tuple[str, ...] = ()

    def with_more(self, later: Selection) -> Selection:
        """This and what stands further right: one value is replaced, a list grows."""
        return replace(
            self,
            plugins=self.plugins if later.plugins is None else later.plugins,
            config=self.config if later.config is None else later.config,
            assignments=(*self.assignments, *later.assignments),
            allow_missing=(*self.allow_missing, *later.allow_missing),
            accept_drift=(*self.accept_drift, *later.accept_drift),
        )
