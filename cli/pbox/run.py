"""`miles pbox run`: one command in a sandbox of its own, for a person."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from miles_periodic.cli import messages
from miles_periodic.cli.pbox.target import (
    DEFAULT_ADDRESS,
    DEFAULT_TOKEN_FILE,
    Address,
    Job,
    TokenFile,
    connected,
)

MIB = 1 << 20
TIMED_OUT_STATUS = 124
TRUNCATED_STATUS = 125


def run_command(
    words: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="A program and its words, behind `--`.")
    ],
    address: Address = DEFAULT_ADDRESS,
    token_file: TokenFile = DEFAULT_TOKEN_FILE,
    job: Job = "",
    image: Annotated[str, typer.Option(metavar="NAME", help="The image to run in.")] = "",
    memory_mib: Annotated[int | None, typer.Option(metavar="N", help="Memory limit.")] = None,
    seconds: Annotated[float, typer.Option(metavar="S", help="Time limit.")] = 60.0,
    output_mib: Annotated[int, typer.Option(metavar="N", help="Output limit.")] = 16,
    take: Annotated[
        Path | None,
        typer.Option("--with", metavar="PATH", help="A file or folder to copy to /work first."),
    ] = None,
) -> None:
    """Run a command in a new sandbox, as in `miles pbox run -- python3 -c 'print(1)'`.

    Its output and standard input are yours. The exit status is the command's; 128 + N where
    signal N ended it, 124 where its time was up, 125 where it wrote too much.
    """
    from miles_periodic.plugins.pbox.limits import Limits

    limits = Limits(memory_bytes=memory_mib * MIB) if memory_mib else None
    stdin = b"" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer.read()
    with connected(address, token_file, job) as host, host.sandbox(image, limits) as box:
        if take is not None:
            box.upload(take, "." if take.is_dir() else take.name)
        result = box.exec(
            words,
            stdin=stdin,
            timeout_seconds=seconds,
            output_limit_bytes=output_mib * MIB,
            on_output=_pass_on,
        )
    raise typer.Exit(status_of(result.outcome))


def _pass_on(stream: str, piece: bytes) -> None:
    to = (sys.stdout if stream == "stdout" else sys.stderr).buffer
    to.write(piece)
    to.flush()


def status_of(outcome) -> int:
    """A shell's exit status for an outcome; what is no plain exit is said on standard error."""
    from miles_periodic.plugins.pbox import outcomes

    if isinstance(outcome, outcomes.Exited):
        return outcome.code
    messages.warning(outcome)
    if isinstance(outcome, outcomes.TimedOut):
        return TIMED_OUT_STATUS
    if isinstance(outcome, outcomes.OutputTruncated):
        return TRUNCATED_STATUS
    return 128 + (outcome.signal if isinstance(outcome, outcomes.Killed) else 9)
