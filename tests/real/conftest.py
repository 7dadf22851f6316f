"""One rehearsal for all tests that read it: the real stack, features off and on."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from cpu_runs import EXACT, run_on_cpu, slugs_of_a_rehearsal

BIN = Path(sys.executable).parent
LIMIT_SECONDS = 2500


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


def rehearse(
    folder: Path, *options: str, plugins="periodic", settings=None, **environment
) -> Rehearsal:
    """Run the command as a user does, and keep what it wrote.

    settings: slug to what is set besides the defaults.
    """
    assignments = [
        f"{slug}.{key}={value}"
        for slug, table in (settings or {}).items()
        for key, value in table.items()
    ]
    command = [
        BIN / "periodic", "--plugins", plugins,
        *(word for each in assignments for word in ("--plugin-set", each)),
        "rehearse", *options,
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
    """Whatever a run with these servers can have, in one that saves after each step."""
    made = rehearse(
        tmp_path_factory.mktemp("rehearsal"),
        "--steps",
        "2",
        plugins="periodic:" + ",".join(sorted(slugs_of_a_rehearsal())),
        settings=EXACT,
    )
    assert made.done.returncode == 0, made.done.stdout + made.done.stderr
    return made


@pytest.fixture
def cpu_run(tmp_path):
    """`cpu_run(*slugs, shape=…, site=…, settings=…)`: as `run_on_cpu`, in the test's folder."""

    def run(*slugs, **options):
        return run_on_cpu(tmp_path / "work", slugs, **options)

    return run
