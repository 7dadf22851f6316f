"""The agent that a command talks to, and the extra that all of them need."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from miles_periodic.hooks.errors import PeriodicError

if TYPE_CHECKING:
    from miles_periodic.plugins.pbox.client.blocking import BlockingHost

Address = Annotated[
    str,
    typer.Option(
        "--address",
        envvar="PBOX_ADDRESS",
        metavar="ADDRESS",
        help="The agent's address: unix:PATH or http://HOST:PORT.",
    ),
]
TokenFile = Annotated[
    Path,
    typer.Option(
        "--token-file",
        envvar="PBOX_TOKEN_FILE",
        metavar="FILE",
        help="The file with the job's token.",
    ),
]
Job = Annotated[
    str,
    typer.Option("--job", metavar="NAME", help="The job in the token file, where it has several."),
]
ImageDir = Annotated[
    Path, typer.Option("--image-dir", metavar="DIR", help="The folder where images lie.")
]
DEFAULT_ADDRESS = "unix:/run/pbox/agent.sock"
DEFAULT_TOKEN_FILE = Path("/run/pbox/tokens")
DEFAULT_IMAGE_DIR = Path("/var/lib/pbox/images")


@contextlib.contextmanager
def connected(address: str, token_file: Path, job: str) -> Iterator[BlockingHost]:
    """A connection to the agent. Raises PeriodicError where the extra or the agent is missing."""
    with needing_the_extra():
        from miles_periodic.plugins.pbox.client.blocking import connect_blocking
    first = address.split(",")[0]
    with connect_blocking(first, token_file=token_file, job=job, timeout_seconds=10) as host:
        yield host


@contextlib.contextmanager
def needing_the_extra() -> Iterator[None]:
    """Say which extra brings what an import did not find."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("aiohttp", "sh"):
            raise
        raise PeriodicError(
            f"Sandboxes need {error.name}, which is not installed.",
            remedy="Run pip install 'miles-periodic[pbox]'.",
        ) from error
