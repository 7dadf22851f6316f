"""Writes cli.md from the command line itself: `python docs/make_cli_page.py`."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from miles_periodic.cli import commands
from miles_periodic.cli.main import app

HEAD = """# The command line

`miles` and `periodic` are the same command. A script's path stands where a subcommand would, and
everything after it goes to the script untouched.

| exit status | of | meaning |
|---|---|---|
| 1 | `rehearse` | a check failed |
| 1 | `bench`, but for `boot`, `decode-radix`, `request-routing` | a goal was missed |
| 1 | `compat matrix --check`, `upstream verify` | the sources say otherwise |
| 1 | `patches check` | a patch set is in conflict |
| 2 | every command | something to change, found before anything was started |
| 3 | a script | the roll call failed; every process of the run on this node was ended |
| 70 | a process of a run | a binding was not in place in it, or its launcher was gone |
| 130 | `rehearse`, `upstream prepare` | it was interrupted |
| other | `pbox run`, `pbox up` | the command's own; more of `pbox run` stands with it |
| other | a script | the script's own; 128 + N where signal N ended it |
"""
COMPLETION = {"install_completion", "show_completion", "help"}


def page() -> str:
    """The page's text."""
    commands.add_to(app)
    return "\n".join([HEAD, *_parts(typer.main.get_command(app), "miles")])


def _parts(command: Any, name: str) -> Iterator[str]:
    """A heading, the help and a table of options for a command and all below it."""
    shown = [part for part in command.params if part.name not in COMPLETION]
    arguments = [_argument(part) for part in shown if not _is_option(part)]
    yield f"## `{' '.join([name, *arguments])}`\n"
    yield _plain(command.help) + "\n"
    rows = [_row(part) for part in shown if _is_option(part)]
    if rows:
        yield "\n".join(["| option | meaning |", "|---|---|", *rows]) + "\n"
    for below, part in getattr(command, "commands", {}).items():
        if not part.hidden:
            yield from _parts(part, f"{name} {below}")


def _argument(argument: Any) -> str:
    name = argument.name.upper() + ("…" if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _is_option(parameter: Any) -> bool:
    return parameter.param_type_name == "option"


def _row(option: Any) -> str:
    value = "" if option.is_flag else f" {option.metavar or 'N'}"
    meaning = _plain(option.help)
    names = "/".join((option.opts[0], *option.secondary_opts))
    if option.default not in (None, False, ""):
        default = option.opts[0] if option.is_flag else option.default
        meaning += f" Default: {default.value if isinstance(default, enum.Enum) else default}."
    return f"| `{names}{value}` | {meaning} |"


def _plain(text: str) -> str:
    """Help as Markdown: what is bold there are words to type, colours are left out."""
    return Text.from_markup(re.sub(r"\[/?bold\]", "`", text)).plain


if __name__ == "__main__":
    Path(__file__).with_name("cli.md").write_text(page(), encoding="utf-8")
