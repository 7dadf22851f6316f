"""A sandbox's files: one bounded tmpfs, in it the writable layer over a shared image, and /work.

HOME/        the tmpfs, `disk_bytes` and `num_files` of the limits
  upper/     what the sandbox changed of its image
  scratch/   OverlayFS's own
  files/     /work; the node reads and writes it too
  staged/    what is being uploaded; renamed into files/ when it is whole
  root/      the image under upper/: the sandbox's root
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from miles_periodic.plugins.pbox.limits import Limits
from miles_periodic.plugins.pbox.node.copies import copy_layer
from miles_periodic.plugins.pbox.node.system_calls import MS_NODEV, MS_NOSUID, mount, unmount

#: Inodes of the folders of the layer itself, which are no files of the user's.
_OWN_INODES = 12


@dataclass(frozen=True, slots=True)
class Layers:
    """Paths of one sandbox's files on the node."""

    home: Path

    @property
    def upper(self) -> Path:
        return self.home / "upper"

    @property
    def files(self) -> Path:
        return self.home / "files"

    @property
    def staged(self) -> Path:
        return self.home / "staged"

    @property
    def root(self) -> Path:
        return self.home / "root"


def make(home: Path, image: Path, limits: Limits, owner: int, kept: Layers | None = None) -> Layers:
    """Mount both file systems of a sandbox; what was mounted is taken away where a part fails.

    owner: the user and group id that /work belongs to. kept: a snapshot to begin with.
    Raises OSError.
    """
    with _bounded(home, limits) as layers:
        for folder in (layers.upper, layers.files, layers.staged, layers.root, home / "scratch"):
            folder.mkdir(mode=0o755)
        os.chown(layers.files, owner, owner)
        if kept is not None:
            copy_layer(kept.upper, layers.upper)
            copy_layer(kept.files, layers.files)
        mount("overlay", str(layers.root), _overlay(image, layers), MS_NOSUID | MS_NODEV)
    return layers


def keep(home: Path, source: Layers, limits: Limits) -> Layers:
    """A snapshot of a writable layer in a tmpfs of its own, as bounded. Raises OSError."""
    with _bounded(home, limits) as layers:
        for kept, made in ((source.upper, layers.upper), (source.files, layers.files)):
            made.mkdir(mode=0o755)
            copy_layer(kept, made)
    return layers


@contextlib.contextmanager
def _bounded(home: Path, limits: Limits) -> Iterator[Layers]:
    home.mkdir(parents=True)
    try:
        size = f"size={limits.disk_bytes},nr_inodes={limits.num_files + _OWN_INODES},mode=0700"
        mount("tmpfs", str(home), size, MS_NOSUID | MS_NODEV)
        yield Layers(home)
    except BaseException:
        remove(home)
        raise


def _overlay(image: Path, layers: Layers) -> str:
    parts = {"lowerdir": image, "upperdir": layers.upper, "workdir": layers.home / "scratch"}
    return ",".join([f"{name}={_escaped(path)}" for name, path in parts.items()] + ["volatile"])


def _escaped(path: Path) -> str:
    """A path as a mount option: the three signs that mean something there are taken literally."""
    return "".join(f"\\{sign}" if sign in "\\,:" else sign for sign in str(path))


def remove(home: Path) -> None:
    """Unmount and remove a sandbox's files; what is not there is no error.

    A file system that is still busy is detached: it ends with its last user.
    """
    for target in (home / "root", home):
        while _unmounted(target):
            pass  # a sweep may find a file system that was mounted over another
    try:
        home.rmdir()
    except FileNotFoundError:
        return


def _unmounted(target: Path) -> bool:
    """Whether something was mounted there; it is no longer."""
    try:
        unmount(str(target))
    except OSError as error:
        if error.errno == errno.EBUSY:
            unmount(str(target), lazily=True)
            return True
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return False
        raise
    return True
