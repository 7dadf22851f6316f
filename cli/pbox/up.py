"""`miles pbox up`: an agent for the time of one command, on CPUs that the command does not use."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from miles_periodic.cli import messages
from miles_periodic.cli.interrupts import end_of
from miles_periodic.cli.pbox.child_agent import PLACES, child_agent, own_place
from miles_periodic.cli.pbox.nodes import Meeting, meeting_of_this_step, own_name
from miles_periodic.cli.pbox.target import DEFAULT_IMAGE_DIR, ImageDir, needing_the_extra
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.agent.tokens import add_job


def up_command(
    words: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="A program and its words, behind `--`.")
    ],
    sandbox_cpus: Annotated[
        int, typer.Option(metavar="N", min=1, help="CPUs for sandboxes, taken by whole cores.")
    ] = 1,
    warm: Annotated[
        list[str] | None,
        typer.Option(metavar="IMAGE=N", help="Keep N sandboxes of an image ready; repeatable."),
    ] = None,
    image: Annotated[
        str, typer.Option(metavar="NAME", help="The image of a sandbox that names none.")
    ] = "base",
    image_dir: ImageDir = DEFAULT_IMAGE_DIR,
    runsc: Annotated[str, typer.Option(metavar="PATH", help="gVisor's program.")] = "runsc",
    platform: Annotated[
        str, typer.Option(metavar="NAME", help="gVisor's platform: systrap, kvm or ptrace.")
    ] = "systrap",
    memory_mib: Annotated[
        int | None, typer.Option(metavar="N", help="Memory of all sandboxes together, in MiB.")
    ] = None,
    share: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A folder that all nodes see, to meet in."),
    ] = None,
    listen_on: Annotated[
        str, typer.Option(metavar="HOST", help="With --share: what other nodes call this one.")
    ] = "",
    tls: Annotated[
        bool,
        typer.Option("--tls/--no-tls", help="With --share: verified and encrypted, or neither."),
    ] = True,
) -> None:
    """Run a command of a job with sandboxes beside it, as in `srun miles pbox up -- COMMAND`.

    The CPUs that the job was given are split in two: the command is pinned to one part, sandboxes
    to the other. PBOX_ADDRESS and PBOX_TOKEN_FILE lead the command to them. With several nodes,
    run it once per node; with --share, PBOX_ADDRESS has all of their agents, this node's first,
    and PBOX_CA_FILE their certificates, made for this run. The exit status is the command's.
    """
    from miles_periodic.plugins.pbox.cpu_lists import written_cpus
    from miles_periodic.plugins.pbox.cpu_split import split

    with needing_the_extra():
        from miles_periodic.plugins.pbox.node.sweep import sweep_abandoned
    cpus = split(sandbox_cpus)
    for abandoned in sweep_abandoned(PLACES, runsc, platform):
        messages.warning(f"an agent before this one was killed; swept what {abandoned} left")
    folder = PLACES / _name()
    options = ["--image", image, "--image-dir", str(image_dir), "--runsc", runsc]
    options += ["--platform", platform, "--cpus", written_cpus(cpus.sandboxes)]
    options += [word for pair in warm or () for word in ("--warm", pair)]
    options += ["--memory-mib", str(memory_mib)] if memory_mib else []
    meeting = meeting_of_this_step(share) if share is not None else None
    host = listen_on or own_name()
    with contextlib.ExitStack() as held:
        if meeting:
            held.callback(meeting.leave)
        token = meeting.token() if meeting else ""
        held.enter_context(own_place(folder))
        options += _shared(folder, token, host if tls else "") if meeting else []
        listen = f"{host}:0" if meeting else ""
        address = _started(held.enter_context(child_agent(folder, options, listen=listen)))
        ways = _ways(folder, meeting, address) if meeting else {"PBOX_ADDRESS": address}
        os.sched_setaffinity(0, cpus.trainer)
        tokens = {"PBOX_TOKEN_FILE": f"{folder}/tokens"}
        status = _run(words, os.environ | {"PBOX_CA_FILE": ""} | tokens | ways)
    raise typer.Exit(status)


def _name() -> str:
    """One per job and step on a node; without Slurm, one that nobody else has."""
    job, step = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_STEP_ID", "0")
    return f"job-{job}-{step}-{os.getpid()}" if job else f"run-{secrets.token_hex(4)}"


def _shared(folder: Path, token: str, tls_host: str) -> list[str]:
    """Put there what an agent shares with those of other nodes; the options that say so.

    tls_host: what the others call this node; empty without TLS.
    """
    add_job(folder / "tokens", "default", token)
    if not tls_host:
        return []
    with needing_the_extra():
        from miles_periodic.plugins.pbox.agent import certificates
    certificate, key = certificates.make(folder, tls_host)
    return ["--certificate", str(certificate), "--key", str(key)]


def _started(address: str) -> str:
    if not address:
        raise PeriodicError(
            "The agent of this job did not start.",
            remedy="Do what it says above; the command was not started.",
        )
    return address


def _ways(folder: Path, meeting: Meeting, address: str) -> dict[str, str]:
    """Tell the other nodes of an agent; what leads the command to the agents of all nodes."""
    file = folder / "certificate.pem"
    own = file.read_text(encoding="utf-8") if file.exists() else ""
    addresses, trusted = meeting.agents(address, own)
    ways = {"PBOX_ADDRESS": ",".join(addresses)}
    if not trusted:
        return ways
    (folder / "trusted.pem").write_text(trusted, encoding="utf-8")
    return ways | {"PBOX_CA_FILE": f"{folder}/trusted.pem"}


def _run(words: list[str], environment: dict[str, str]) -> int:
    """Run the command with our streams; signals that Slurm sends to us are its."""
    try:
        child = subprocess.Popen(words, env=environment)
    except OSError as error:
        raise PeriodicError(
            f"{words[0]!r} cannot be run: {error.strerror}.", remedy="Give a program's path."
        ) from error
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda sent, frame: child.send_signal(sent))
    status = end_of(child)
    return 128 - status if status < 0 else status
