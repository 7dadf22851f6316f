"""A root file system from an OCI image: skopeo fetches, umoci unpacks; Debian packages both."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import sh

from miles_periodic.hooks.errors import PeriodicError

#: Variables of an image that a sandbox keeps; the user and folder of commands are pbox's own.
_NOT_KEPT = ("HOME", "HOSTNAME", "TERM")


@dataclass(frozen=True, slots=True)
class Fetched:
    """digest: of the manifest, which names the image's content. layout: where it lies."""

    digest: str
    layout: Path


def fetch(source: str, scratch: Path) -> Fetched:
    """Copy an image into `scratch`.

    source: as skopeo names it, such as docker://python:3.12, oci-archive:FILE or oci:FOLDER:TAG.
    Raises PeriodicError where it cannot be had.
    """
    layout = scratch / "layout"
    _run("skopeo", "copy", "--insecure-policy", "--quiet", source, f"oci:{layout}:image")
    (manifest,) = json.loads((layout / "index.json").read_text(encoding="utf-8"))["manifests"]
    return Fetched(manifest["digest"].partition(":")[2][:16], layout)


def unpack(fetched: Fetched, root: Path, scratch: Path) -> dict[str, str]:
    """Unpack a fetched image as the folder `root`; the variables that it sets for its programs."""
    bundle = scratch / "bundle"
    _run("umoci", "unpack", "--image", f"{fetched.layout}:image", str(bundle))
    (bundle / "rootfs").rename(root)
    for folder in ("proc", "sys", "dev", "tmp", "work"):
        (root / folder).mkdir(exist_ok=True)
    entries = json.loads((bundle / "config.json").read_text(encoding="utf-8"))["process"]["env"]
    pairs = dict(entry.partition("=")[::2] for entry in entries)
    return {name: value for name, value in pairs.items() if name not in _NOT_KEPT}


def _run(program: str, *arguments: str) -> None:
    try:
        sh.Command(program)(*arguments, _tty_out=False, _return_cmd=True)
    except sh.CommandNotFound as error:
        raise PeriodicError(
            f"OCI images need {program}, which is not installed.",
            remedy="Run apt-get install skopeo umoci, or unpack the image elsewhere and add its "
            "folder with `miles pbox image add`.",
        ) from error
    except sh.ErrorReturnCode as error:
        raise PeriodicError(
            f"{program} did not do {' '.join(arguments[:2])!r} with this image.",
            found=error.stderr.decode(errors="replace").strip()[-1000:],
            remedy="Name it as skopeo does, such as docker://python:3.12 or oci-archive:FILE.",
        ) from error
