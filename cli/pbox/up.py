"""`miles pbox up`: an agent for the time of one command, on CPUs that the command does not use."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from miles_periodic.cli import messages
from miles_periodic.cli.pbox.nodes import Meeting, meeting_of_this_step, own_name
from miles_periodic.cli.pbox.target import DEFAULT_IMAGE_DIR, ImageDir, needing_the_extra
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.agent.tokens import add_job

_CODE = "from miles_periodic.cli.main import main; main()"
STOP_SECONDS = 20
PLACES = Path("/run/pbox")


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
    name = _name()
    folder = PLACES / name
    options = ["--image", image, "--image-dir", str(image_dir), "--runsc", runsc]
    options += ["--platform", platform, "--cpus", written_cpus(cpus.sandboxes)]
    options += [word for pair in warm or () for word in ("--warm", pair)]
    options += ["--memory-mib", str(memory_mib)] if memory_mib else []
    meeting = meeting_of_this_step(share) if share is not None else None
    host = listen_on or own_name()
    listen = f"{host}:0" if meeting else f"unix:{folder}/socket"
    with contextlib.ExitStack() as held:
        if meeting:
            held.callback(meeting.leave)
        token = meeting.token() if meeting else ""
        agent = _Agent(folder, name, listen, token, options, host if meeting and tls else "")
        address = held.enter_context(agent)
        ways = agent.known_to(meeting, address) if meeting else {"PBOX_ADDRESS": address}
        os.sched_setaffinity(0, cpus.trainer)
        tokens = {"PBOX_TOKEN_FILE": f"{folder}/tokens"}
        status = _run(words, os.environ | {"PBOX_CA_FILE": ""} | tokens | ways)
    raise typer.Exit(status)


def _name() -> str:
    """One per job and step on a node; without Slurm, one that nobody else has."""
    job, step = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_STEP_ID", "0")
    return f"job-{job}-{step}-{os.getpid()}" if job else f"run-{secrets.token_hex(4)}"


class _Agent:
    """An agent as a child, in a session of its own: signals for the job reach it through us."""

    def __init__(
        self,
        folder: Path,
        name: str,
        listen: str,
        token: str,
        options: list[str],
        tls_host: str = "",
    ) -> None:
        self.folder = folder
        self.token = token
        self.tls_host = tls_host
        self.command = [
            sys.executable, "-c", _CODE, "pbox", "agent", "--listen", listen,
            "--token-file", f"{folder}/tokens", "--state-dir", f"{folder}/state",
            "--cgroup", f"pbox-{name}", "--stop-with-stdin", *options,
        ]  # fmt: skip

    def __enter__(self) -> str:
        self.folder.mkdir(parents=True, mode=0o700)
        try:
            return self._start()
        except BaseException:
            self._remove()
            raise

    def _start(self) -> str:
        """Start it; its address when it listens."""
        if self.token:
            add_job(self.folder / "tokens", "default", self.token)
        if self.tls_host:
            with needing_the_extra():
                from miles_periodic.plugins.pbox.agent import certificates
            certificate, key = certificates.make(self.folder, self.tls_host)
            self.command += ["--certificate", str(certificate), "--key", str(key)]
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        line = self.process.stdout.readline()
        if not line.startswith("listening at "):
            self.process.wait(STOP_SECONDS)
            raise PeriodicError(
                "The agent of this job did not start.",
                remedy="Do what it says above; the command was not started.",
            )
        return line.split()[-1]

    def known_to(self, meeting: Meeting, address: str) -> dict[str, str]:
        """Tell the other nodes of it; what leads the command to the agents of all nodes."""
        file = self.folder / "certificate.pem"
        own = file.read_text(encoding="utf-8") if self.tls_host else ""
        addresses, trusted = meeting.agents(address, own)
        if not trusted:
            return {"PBOX_ADDRESS": ",".join(addresses)}
        (self.folder / "trusted.pem").write_text(trusted, encoding="utf-8")
        return {
            "PBOX_ADDRESS": ",".join(addresses), "PBOX_CA_FILE": f"{self.folder}/trusted.pem"
        }  # fmt: skip

    def __exit__(self, *exception: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            messages.warning("the agent took too long to stop and was killed; its sandboxes go")
            self.process.kill()
            self.process.wait()
        self._remove()

    def _remove(self) -> None:
        from miles_periodic.plugins.pbox.node.place import PLACE_FILES

        for name in PLACE_FILES:
            (self.folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()  # where the agent's own end has not, or will not when it is over


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
    status = child.wait()
    return 128 - status if status < 0 else status
