"""What else decides besides the trees: Python, torch, devices, Ray, runsc, Slurm."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

#: Upstream to the distributions that can bring it, the most specific first.
DISTRIBUTIONS = {
    "sglang": ("sglang", "miles-rl"),
    "megatron": ("megatron-core", "miles-rl"),
    "miles": ("miles-rl", "miles"),
}
#: The tool of the driver alone takes many seconds on a busy node of eight GPUs.
_TIMEOUT_SECONDS = 60.0


def describe() -> dict[str, Any]:
    """The environment of a plan, as `miles plan --json` prints it.

    Each entry is {"present": bool, "version": str | None, "commit": str | None}; `cuda` also has
    `devices`, and an upstream that another distribution carries also has `provided_by`.
    """
    return {
        "python": {"present": True, "version": platform.python_version(), "commit": None},
        "torch": distribution("torch"),
        "cuda": cuda_devices(),
        "transformer-engine": distribution("transformer-engine", "transformer-engine-torch"),
        "deep_ep": distribution("deep_ep", "deep-ep"),
        "ray": distribution("ray"),
        "runsc": program("runsc", "--version"),
        "slurm": _slurm(),
        **{upstream: _upstream(upstream) for upstream in DISTRIBUTIONS},
    }


def distribution(*names: str) -> dict[str, Any]:
    """The first installed distribution of `names`, by its metadata only."""
    for name in names:
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        return _entry(True, found.version, commit_of(found))
    return _entry(False)


def _entry(present: bool, version: str | None = None, commit: str | None = None) -> dict[str, Any]:
    return {"present": present, "version": version, "commit": commit}


def _upstream(upstream: str) -> dict[str, Any]:
    """An upstream's distribution; one that lies in another's wheel has no version of its own."""
    own, *_ = DISTRIBUTIONS[upstream]
    entry = distribution(own)
    if entry["present"]:
        return entry
    for name in metadata.packages_distributions().get(upstream, ()):
        found = metadata.distribution(name)
        if name in DISTRIBUTIONS[upstream] and name != "miles-rl":
            return distribution(name)
        carried = {"provided_by": f"{name} {found.version}"}
        return _entry(True, None, commit_of(found)) | carried
    return entry


def commit_of(found: metadata.Distribution) -> str | None:
    """The commit of a distribution installed from a repository or in place from a checkout."""
    text = found.read_text("direct_url.json")
    if text is None:
        return None
    origin = json.loads(text)
    if "vcs_info" in origin:
        return origin["vcs_info"].get("commit_id")
    url = urlparse(origin.get("url", ""))
    if url.scheme == "file" and origin.get("dir_info", {}).get("editable"):
        return _output("git", "-C", str(Path(unquote(url.path))), "rev-parse", "HEAD")
    return None


def program(name: str, *arguments: str) -> dict[str, Any]:
    """A program on the path and the version that it prints."""
    if shutil.which(name) is None:
        return _entry(False)
    printed = _output(name, *arguments) or ""
    version = re.search(r"\d[\w.\-+]*", printed)
    return _entry(True, version.group() if version else None)


def _slurm() -> dict[str, Any]:
    sinfo = program("sinfo", "--version")
    return sinfo if sinfo["present"] else program("srun", "--version")


def cuda_devices() -> dict[str, Any]:
    """CUDA devices as the driver's tool names them, each {"name", "capability"}.

    `version` is the driver's.
    """
    query = "--query-gpu=driver_version,compute_cap,name"
    printed = _output("nvidia-smi", query, "--format=csv,noheader") or ""
    rows = [line.split(", ", 2) for line in printed.splitlines() if line.count(", ") >= 2]
    devices = [{"name": name, "capability": capability} for _, capability, name in rows]
    return _entry(bool(rows), rows[0][0] if rows else None) | {"devices": devices}


def _output(*command: str) -> str | None:
    """A program's standard output, or None where it is missing, fails or does not come back."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
