"""Wheels of the package index as folders of sources, in the user's cache."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from miles_periodic.compat.matrix.releases import Release
from miles_periodic.hooks.cache_folder import cache_folder
from miles_periodic.hooks.errors import PeriodicError

DOWNLOAD_TIMEOUT_SECONDS = 900
_PLATFORMS = ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux2014_x86_64", "any")


def folder_of(release: Release) -> Path:
    """Where a release's sources are, or will be."""
    return cache_folder() / "trees" / release.label


def unpacked(release: Release) -> Path:
    """The folder with a release's Python sources; downloaded where it is not there yet.

    Raises PeriodicError where the index cannot be reached or has no such wheel.
    """
    folder = folder_of(release)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{release.label}.") as beside:
        sources = Path(beside) / "sources"
        _unpack(_download(release, Path(beside)), sources)
        _publish(sources, folder)
    return folder


def _publish(sources: Path, folder: Path) -> None:
    """One rename, so that no other process sees half a tree; the first of two wins."""
    try:
        sources.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        shutil.rmtree(sources)


def _download(release: Release, into: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    command += ["--disable-pip-version-check", "--only-binary=:all:"]
    command += ["--python-version", release.python, "--implementation", "cp"]
    command += ["--abi", f"cp{release.python.replace('.', '')}", "--abi", "abi3", "--abi", "none"]
    command += [part for platform in _PLATFORMS for part in ("--platform", platform)]
    command += ["--dest", str(into), release.name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_SECONDS, check=False
        )
        said = done.stderr.strip()
    except subprocess.TimeoutExpired:
        done, said = None, f"no answer within {DOWNLOAD_TIMEOUT_SECONDS} s"
    if done is None or done.returncode:
        raise _not_downloaded(release, said)
    (wheel,) = into.glob("*.whl")
    return wheel


def _not_downloaded(release: Release, said: str) -> PeriodicError:
    errors = [line for line in said.splitlines() if line.startswith("ERROR: ")]
    return PeriodicError(
        f"{release.name} could not be downloaded.",
        expected=f"a wheel for Python {release.python} in the package index that pip uses",
        found=(errors or said.splitlines() or ["no word from pip"])[-1].removeprefix("ERROR: "),
        remedy="Connect to the index, or choose releases that are in "
        f"{folder_of(release).parent} with --release.",
    )


def _unpack(wheel: Path, folder: Path) -> None:
    """The Python sources alone: nothing else of a wheel is ever read, and binaries are large."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".py")]
        archive.extractall(folder, names)
