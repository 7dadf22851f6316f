"""`miles pbox agent`: the agent of this node, until it is told to stop."""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from miles_periodic.cli.pbox.target import (
    DEFAULT_ADDRESS,
    DEFAULT_IMAGE_DIR,
    DEFAULT_TOKEN_FILE,
    ImageDir,
    needing_the_extra,
)
from miles_periodic.hooks.errors import PeriodicError

MIB = 1 << 20


def agent_command(
    listen: Annotated[
        str, typer.Option(metavar="WHERE", help="Where to listen: unix:PATH or HOST:PORT.")
    ] = DEFAULT_ADDRESS,
    token_file: Annotated[
        Path, typer.Option(metavar="FILE", help="One job and its token per line; made if missing.")
    ] = DEFAULT_TOKEN_FILE,
    state_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="Where sandboxes are mounted.")
    ] = Path("/run/pbox/state"),
    image_dir: ImageDir = DEFAULT_IMAGE_DIR,
    cgroup: Annotated[
        str, typer.Option(metavar="PATH", help="The control group above all sandboxes.")
    ] = "pbox",
    runsc: Annotated[str, typer.Option(metavar="PATH", help="gVisor's program.")] = "runsc",
    platform: Annotated[
        str, typer.Option(metavar="NAME", help="gVisor's platform: systrap, kvm or ptrace.")
    ] = "systrap",
    cpus: Annotated[
        str, typer.Option(metavar="LIST", help="CPUs of the sandboxes, such as 2-7,10.")
    ] = "",
    memory_mib: Annotated[
        int | None, typer.Option(metavar="N", help="Memory of all sandboxes together, in MiB.")
    ] = None,
    image: Annotated[
        str, typer.Option(metavar="NAME", help="The image of a sandbox that names none.")
    ] = "base",
    warm: Annotated[
        list[str] | None,
        typer.Option(metavar="IMAGE=N", help="Keep N sandboxes of an image ready; repeatable."),
    ] = None,
    max_sandboxes: Annotated[
        int, typer.Option(metavar="N", help="Most sandboxes at a time.")
    ] = 256,
    heartbeat_seconds: Annotated[
        float, typer.Option(metavar="S", help="How often a job is asked for a sign of life.")
    ] = 10.0,
    allow_unenforced: Annotated[
        list[str] | None,
        typer.Option(metavar="LIMIT", help="Start although this limit is not enforced here."),
    ] = None,
    stop_with_stdin: Annotated[
        bool, typer.Option("--stop-with-stdin", help="Stop when standard input, a pipe, ends.")
    ] = False,
) -> None:
    """Run sandboxes for the jobs of this node.

    Sweeps what an agent before it left, proves every limit by running into it, then listens. Logs
    are one JSON object per line on standard error; counts are at /metrics.
    """
    with needing_the_extra():
        import asyncio

        from miles_periodic.plugins.pbox.agent.server import serve
        from miles_periodic.plugins.pbox.agent.settings import AgentSettings
    try:
        settings = AgentSettings(
            listen=listen,
            token_file=token_file,
            state_dir=state_dir,
            image_dir=image_dir,
            cgroup=cgroup,
            runsc=runsc,
            platform=platform,
            cpus=cpus,
            memory_bytes=None if memory_mib is None else memory_mib * MIB,
            default_image=image,
            warm=_numbers(warm or []),
            max_sandboxes=max_sandboxes,
            heartbeat_seconds=heartbeat_seconds,
            allow_unenforced=frozenset(allow_unenforced or ()),
        )
    except ValidationError as error:
        raise PeriodicError(
            f"The agent cannot be set up so: {error}.", remedy="Change the options it names."
        ) from error
    _log_as_json()
    asyncio.run(serve(settings, _say_where, stop_with_stdin))


def _say_where(address: str) -> None:
    typer.echo(f"listening at {address}")


def _numbers(pairs: list[str]) -> dict[str, int]:
    numbers = {}
    for pair in pairs:
        name, equals, number = pair.partition("=")
        if not (equals and name and number.isdigit()):
            raise PeriodicError(f"--warm {pair!r} is no pair.", remedy="Write it as IMAGE=N.")
        numbers[name] = int(number)
    return numbers


class _JsonLines(logging.Formatter):
    """One object per record, which a log collector reads without a pattern."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "from": record.name.rpartition(".")[2],
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _log_as_json() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("sh").setLevel(logging.WARNING)
