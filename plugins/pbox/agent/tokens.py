"""The token file: a job and its token per line, readable by its owner alone."""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path

from miles_periodic.hooks.errors import PeriodicError

MIN_TOKEN_CHARACTERS = 32


class Tokens:
    """The jobs of a token file: `job token` per line."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._read_at: tuple[int, int] | None = None
        self._jobs: dict[str, str] = {}

    def ensure(self) -> None:
        """Make the file, with a token for the job `default`, where there is none."""
        if self.file.exists():
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        add_job(self.file, "default")

    def job_of(self, token: str) -> str | None:
        """The job that a token is of; compared in a time that tells nothing."""
        self._refresh()
        found = None
        for job, known in self._jobs.items():
            if hmac.compare_digest(known.encode(), token.encode()):
                found = job
        return found

    def _refresh(self) -> None:
        try:
            stat = self.file.stat()
        except FileNotFoundError:
            self._jobs, self._read_at = {}, None
            return
        if (stat.st_mtime_ns, stat.st_ino) != self._read_at:
            lines = self.file.read_text(encoding="utf-8").splitlines()
            pairs = [line.split() for line in lines if line.strip()]
            self._jobs = {
                pair[0]: pair[1]
                for pair in pairs
                if len(pair) == 2 and len(pair[1]) >= MIN_TOKEN_CHARACTERS
            }
            self._read_at = (stat.st_mtime_ns, stat.st_ino)


def add_job(file: Path, job: str, token: str = "") -> str:
    """Give a job a token, a new one where none is given, in place of the one it had; the token."""
    if not job or any(sign.isspace() for sign in job):
        raise PeriodicError(f"{job!r} is no name for a job.", remedy="Use one word.")
    token = token or secrets.token_urlsafe(32)
    before = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    lines = [line for line in before if line.split()[:1] != [job]] + [f"{job} {token}"]
    staged = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write("\n".join(lines) + "\n")
    staged.rename(file)
    return token


def read_token(file: Path, job: str = "") -> str:
    """The token of a job in a token file, or of its only one. Raises PeriodicError."""
    try:
        pairs = [line.split() for line in file.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise PeriodicError(
            f"The token file {file} cannot be read: {error.strerror}.",
            remedy="Start `miles pbox agent`, or give the file that the agent was started with, "
            "as a user who may read it.",
        ) from error
    found = [pair[1] for pair in pairs if len(pair) == 2 and job in ("", pair[0])]
    if len(found) != 1:
        whose = f" of the job {job!r}" if job else ""
        raise PeriodicError(
            f"{file} has {len(found)} tokens{whose}.",
            remedy="Name one of its jobs.",
        )
    return found[0]
