"""The subcommands, added to the group when it runs: none is imported before it is needed."""

from __future__ import annotations

import typer


def add_to(app: typer.Typer) -> None:
    """Add every subcommand to `app`."""
    from miles_periodic.cli import bench, compat, patches, pbox, plan, reshard, upstream
    from miles_periodic.cli.rehearsal.command import rehearse_command

    app.command("plan")(plan.plan_command)
    app.command("rehearse")(rehearse_command)
    app.command("reshard")(reshard.reshard_command)
    app.add_typer(bench.app, name="bench")
    app.add_typer(pbox.app, name="pbox")
    app.add_typer(compat.app, name="compat")
    app.add_typer(patches.app, name="patches")
    app.add_typer(upstream.app, name="upstream")
