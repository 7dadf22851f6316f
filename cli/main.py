"""The command line: subcommands, and any script's name as the command that launches it."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from typer.core import TyperGroup

from miles_periodic.cli import messages
from miles_periodic.cli.options import (
    AcceptDrift,
    AllowMissing,
    PluginConfig,
    Plugins,
    PluginSet,
    Selection,
)
from miles_periodic.cli.process_name import set_process_name
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.nearest_name import did_you_mean

#: The entry that stands in for train.py where Miles was installed without its scripts.
TRAIN = "train"


class ScriptOrCommand(TyperGroup):
    """A group in which a script's path is a command too: `miles --plugins periodic train.py …`."""

    def resolve_command(self, ctx: typer.Context, args: list[str]):
        name = args[0]
        if name in self.commands:
            return super().resolve_command(ctx, args)
        if name == TRAIN or os.path.isfile(name):
            # Behind a first `--`, which the parser takes away, every argument stays as it is.
            return "launch", self.commands["launch"], ["--", *args]
        known = [command for command, c in self.commands.items() if not c.hidden]
        raise PeriodicError(
            f"{name!r} is neither a command nor a script that exists.",
            remedy=did_you_mean(name, [*known, TRAIN])
            + " A script is the path of Miles's train.py or train_async.py.",
        )


app = typer.Typer(
    cls=ScriptOrCommand,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"miles-periodic {version('miles-periodic')}")
        raise typer.Exit()


@app.callback()
def select(
    context: typer.Context,
    plugins: Plugins = None,
    plugin_config: PluginConfig = None,
    plugin_set: PluginSet = None,
    allow_missing: AllowMissing = None,
    accept_drift: AcceptDrift = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Run Miles with features that its release does not have, on unmodified upstreams.

    [bold]miles --plugins periodic train_async.py ARGS…[/bold] runs Miles's own script with every
    default feature; all that stands after the script's name goes to Miles untouched.
    [bold]miles plan[/bold] shows what each feature would do here, and why.
    [bold]miles --plugins periodic rehearse[/bold] runs the whole loop on a CPU first.
    """
    context.obj = Selection(
        plugins=plugins,
        config=plugin_config,
        assignments=tuple(plugin_set or ()),
        allow_missing=tuple(allow_missing or ()),
        accept_drift=tuple(accept_drift or ()),
    )


@app.command(
    "launch",
    hidden=True,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
def launch_command(
    context: typer.Context,
    script: str,
    arguments: Annotated[list[str] | None, typer.Argument()] = None,
) -> None:
    """Run a script of Miles under the selected plugins."""
    from miles_periodic.cli.launch import launch

    raise typer.Exit(launch(script, arguments or [], context.obj))


def main() -> None:
    """The console script; exits 2 where the user must change something."""
    set_process_name()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # a terminal that cannot show a sign gets another one, not an error
            stream.reconfigure(errors="replace")
    from miles_periodic.cli import commands

    commands.add_to(app)
    try:
        app()
    except PeriodicError as error:
        messages.error(error)
        sys.exit(error.status)
