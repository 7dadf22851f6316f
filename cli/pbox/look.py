"""`miles pbox ls | top | logs | kill`: what a job's sandboxes do."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from miles_periodic.cli.pbox.target import (
    DEFAULT_ADDRESS,
    DEFAULT_TOKEN_FILE,
    Address,
    Job,
    TokenFile,
    connected,
)
from miles_periodic.hooks.errors import PeriodicError

MIB = 1 << 20


def ls_command(
    address: Address = DEFAULT_ADDRESS,
    token_file: TokenFile = DEFAULT_TOKEN_FILE,
    job: Job = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the sandboxes of a job."""
    with connected(address, token_file, job) as host:
        sandboxes = host.sandboxes()
    if as_json:
        typer.echo(json.dumps(sandboxes, indent=2))
    else:
        Console().print(table_of(sandboxes, {}, 0.0))


def top_command(
    address: Address = DEFAULT_ADDRESS,
    token_file: TokenFile = DEFAULT_TOKEN_FILE,
    job: Job = "",
    seconds: Annotated[float, typer.Option(metavar="S", help="Between two readings.")] = 2.0,
) -> None:
    """Watch the sandboxes of a job, those that use most CPU first; Ctrl-C ends it."""
    with connected(address, token_file, job) as host, Live(auto_refresh=False) as screen:
        before: dict[str, float] = {}
        try:
            while True:
                sandboxes = host.sandboxes()
                screen.update(table_of(sandboxes, before, seconds), refresh=True)
                before = {row["name"]: row["cpu_seconds"] for row in sandboxes}
                time.sleep(seconds)
        except KeyboardInterrupt:
            return


def table_of(sandboxes: list[dict[str, Any]], before: dict[str, float], seconds: float) -> Table:
    """before: CPU seconds at the last reading, `seconds` ago; empty where there was none."""
    table = Table(
        "sandbox", "image", "age", "commands", "memory", "processes", "CPU seconds", "CPU"
    )
    rows = [(row, _cpu_share(row, before, seconds)) for row in sandboxes]
    for row, share in sorted(rows, key=lambda pair: -(pair[1] or 0.0)):
        table.add_row(
            row["name"],
            row["image"],
            f"{time.time() - row['started_at']:.0f} s",
            str(row["num_commands"]),
            f"{row['memory_bytes'] // MIB} of {row['limits']['memory_bytes'] // MIB} MiB",
            str(row["num_processes"]),
            f"{row['cpu_seconds']:.1f}",
            ("" if share is None else f"{share:.0%}") if row["lives"] else "ended",
        )
    return table


def _cpu_share(row: dict[str, Any], before: dict[str, float], seconds: float) -> float | None:
    if row["name"] not in before or seconds <= 0:
        return None
    return (row["cpu_seconds"] - before[row["name"]]) / seconds


def logs_command(
    sandbox: str,
    address: Address = DEFAULT_ADDRESS,
    token_file: TokenFile = DEFAULT_TOKEN_FILE,
    job: Job = "",
) -> None:
    """Print what gVisor wrote about a sandbox; empty where it had nothing to say."""
    with connected(address, token_file, job) as host:
        typer.echo(host.attach(_full_name(host.sandboxes(), sandbox)).log())


def kill_command(
    sandboxes: list[str],
    address: Address = DEFAULT_ADDRESS,
    token_file: TokenFile = DEFAULT_TOKEN_FILE,
    job: Job = "",
) -> None:
    """Destroy sandboxes by name, or by the beginning of a name that only one has."""
    with connected(address, token_file, job) as host:
        known = host.sandboxes()
        for name in [_full_name(known, each) for each in sandboxes]:
            host.attach(name).close()
            typer.echo(f"destroyed {name}")


def _full_name(sandboxes: list[dict[str, Any]], beginning: str) -> str:
    found = [row["name"] for row in sandboxes if row["name"].startswith(beginning)]
    if len(found) != 1:
        raise PeriodicError(
            f"{len(found)} sandboxes of the job have names that begin with {beginning!r}.",
            remedy="Give the whole name, as `miles pbox ls` shows it.",
        )
    return found[0]
