"""One rehearsal for all tests that read it: the real stack, features off and on."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
LIMIT_SECONDS = 900


@dataclass(frozen=True)
class Rehearsal:
    """What a rehearsal left."""

    done: subprocess.CompletedProcess
    folder: Path

    @property
    def result(self) -> dict:
        return json.loads((self.folder / "result.json").read_text(encoding="utf-8"))

    @property
    def report(self) -> str:
        return (self.folder / "report.html").read_text(encoding="utf-8")


def rehearse(folder: Path, *options: str, plugins="periodic", **environment) -> Rehearsal:
    """Run the command as a user does, and keep what it wrote."""
    command = [
        BIN / "periodic", "--plugins", plugins, "rehearse", *options,
        "--json", folder / "result.json", "--report", folder / "report.html",
        "--work-dir", folder / "work",
    ]  # fmt: skip
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        env={**os.environ, **environment},
    )
    return Rehearsal(done, folder)


@pytest.fixture(scope="session")
def rehearsal(tmp_path_factory) -> Rehearsal:
    made = rehearse(tmp_path_factory.mktemp("rehearsal"), "--steps", "2")
    assert made.done.returncode == 0, made.done.stdout + made.done.stderr
    return made
