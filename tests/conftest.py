"""What all tests share: unpacked releases, and nothing skipped in silence."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

CACHE = Path(__file__).parents[1] / ".cache" / "trees"
PLATFORMS = ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux2014_x86_64", "any")
DOWNLOAD_TIMEOUT_SECONDS = 900


@pytest.fixture(scope="session")
def unpacked() -> Callable[[str, str, str], Path]:
    """`unpacked(distribution, version, python)`: the folder of that wheel, fetched if need be."""
    return unpacked_wheel


def unpacked_wheel(distribution: str, version: str, python: str) -> Path:
    folder = CACHE / f"{distribution}-{version}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            _unpack(_download(distribution, version, python), folder)
    return folder


def _download(distribution: str, version: str, python: str) -> Path:
    wheels = CACHE / "wheels" / f"{distribution}-{version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
    command += ["--abi", f"cp{python.replace('.', '')}", "--abi", "abi3", "--abi", "none"]
    command += [part for platform in PLATFORMS for part in ("--platform", platform)]
    command += ["--dest", str(wheels), f"{distribution}=={version}"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_SECONDS, check=False
    )
    if done.returncode:
        pytest.fail(f"{distribution} {version} could not be downloaded:\n{done.stderr}")
    (wheel,) = wheels.glob("*.whl")
    return wheel


def _unpack(wheel: Path, folder: Path) -> None:
    """Unpack beside and rename, so that an interrupted run leaves no half tree behind."""
    unfinished = folder.with_name(f"{folder.name}.part")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unfinished)
    wheel.unlink()
    unfinished.rename(folder)


# Skips are counted, and in CI one is a failure.


def pytest_terminal_summary(terminalreporter):
    skipped = terminalreporter.stats.get("skipped", [])
    terminalreporter.write_line(f"{len(skipped)} skipped")
    for report in skipped:
        terminalreporter.write_line(f"  {report.nodeid}: {report.longrepr[2]}")


def pytest_sessionfinish(session):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") and reporter.stats.get("skipped") and session.exitstatus == 0:
        session.exitstatus = 1
