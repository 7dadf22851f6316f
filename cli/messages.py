"""What the command line says to people on standard error: a word in colour, then plain text."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

_console = Console(stderr=True, highlight=False, soft_wrap=True)


def say(word: str, text: object, style: str = "") -> None:
    """Print `word` in a rich style, and `text` as it stands: brackets in it are no markup."""
    _console.print(Text.assemble((word, style), " ", str(text)))


def error(text: object) -> None:
    """Say what stopped the command."""
    say("error", text, "bold red")


def warning(text: object) -> None:
    """Say what the user should know, and go on."""
    say("warning", text, "yellow")


def roll_call_failed(text: object) -> None:
    """Say which process did not do what the plan says."""
    say("roll call failed", text, "bold red")
