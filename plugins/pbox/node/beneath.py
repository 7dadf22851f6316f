"""The files of /work from outside: every path is opened with /work as the root of all links.

What is in there was made by code nobody trusts: links to the node's files, pipes that never
answer, folders that are renamed while they are read. Nothing here follows a link out of /work,
opens what is no plain file or folder, or leaves half a file under the name that was asked for.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from miles_periodic.plugins.pbox.node.bundle import USER_ID
from miles_periodic.plugins.pbox.node.layers import Layers
from miles_periodic.plugins.pbox.node.system_calls import open_in_root

PIECE_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class WorkFiles:
    """/work of a sandbox, and the folder beside it where uploads wait until they are whole.

    most_bytes: what the sandbox's disk holds. A file may claim to be longer than that: with holes,
    one of a few bytes is as long as its maker likes, and would fill whoever reads it.
    """

    layers: Layers
    most_bytes: int

    @contextmanager
    def root(self) -> Iterator[int]:
        """A descriptor of /work."""
        with _folder(self.layers.files) as descriptor:
            yield descriptor

    def open_to_read(self, path: str) -> int:
        """A descriptor of a plain file.

        Raises OSError: EINVAL where it is something else, EFBIG where it is larger than the disk.
        """
        with self.root() as root:
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
            descriptor = open_in_root(root, relative(path), flags)
        try:
            self._refuse_to_read(os.fstat(descriptor), path)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def _refuse_to_read(self, found: os.stat_result, path: str) -> None:
        if not stat.S_ISREG(found.st_mode):
            number = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
            raise OSError(number, "it is no plain file", path)
        if found.st_size > self.most_bytes:
            raise OSError(errno.EFBIG, "it claims to be larger than its disk", path)

    @contextmanager
    def staged(self, path: str, mode: int = 0o644) -> Iterator[int]:
        """A descriptor to write to; `path` is replaced by what was written when all went well.

        Folders on the way are made. After an error nothing has changed.
        """
        name = secrets.token_hex(8)
        with _folder(self.layers.staged) as stage:
            descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=stage)
            try:
                yield descriptor
                os.fchmod(descriptor, mode & 0o777)
                os.fchown(descriptor, USER_ID, USER_ID)
                with self.parent(path) as (parent, last):
                    os.rename(name, last, src_dir_fd=stage, dst_dir_fd=parent)
            except BaseException:
                os.unlink(name, dir_fd=stage)
                raise
            finally:
                os.close(descriptor)

    @contextmanager
    def parent(self, path: str) -> Iterator[tuple[int, str]]:
        """A descriptor of the folder that `path` is in, made where it is missing; the last name."""
        *folders, last = names_of(path)
        with self.root() as root:
            descriptor = _made_folder(root, folders)
            try:
                yield descriptor, last
            finally:
                os.close(descriptor)

    def make_folder(self, path: str, mode: int = 0o755) -> None:
        """Make a folder and those on the way to it; one that is there stays."""
        with self.root() as root:
            descriptor = _made_folder(root, names_of(path))
            try:
                os.fchmod(descriptor, mode & 0o777)
            finally:
                os.close(descriptor)

    def make_link(self, path: str, target: str) -> None:
        """Make a symbolic link, in place of whatever plain file or link had the name."""
        with self.parent(path) as (parent, last):
            staged = f".{last[:200]}.{secrets.token_hex(4)}"
            os.symlink(target, staged, dir_fd=parent)
            os.chown(staged, USER_ID, USER_ID, dir_fd=parent, follow_symlinks=False)
            try:
                os.rename(staged, last, src_dir_fd=parent, dst_dir_fd=parent)
            except OSError:
                os.unlink(staged, dir_fd=parent)
                raise


def names_of(path: str) -> list[str]:
    """The names of a path below /work. Raises OSError where it has none or leads upwards."""
    if path == "/work" or path.startswith("/work/"):
        path = path[len("/work") :]
    elif path.startswith("/"):
        raise OSError(errno.EXDEV, "only files below /work can be reached from outside", path)
    names = [name for name in path.split("/") if name not in ("", ".")]
    if not names or ".." in names or "\0" in path:
        raise OSError(errno.EINVAL, "it is no path of a file below /work", path)
    return names


def relative(path: str) -> str:
    """A path below /work as a path relative to it."""
    return "/".join(names_of(path))


def _made_folder(root: int, names: list[str]) -> int:
    """A descriptor of the folder `names` below `root`; what is missing is made."""
    descriptor = os.dup(root)
    for depth, name in enumerate(names):
        try:
            os.mkdir(name, 0o755, dir_fd=descriptor)
            made = True
        except FileExistsError:
            made = False
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        # From the root each time: a link among the names may lead elsewhere in /work.
        descriptor = open_in_root(root, "/".join(names[: depth + 1]), os.O_RDONLY | os.O_DIRECTORY)
        if made:
            os.fchown(descriptor, USER_ID, USER_ID)
    return descriptor


@contextmanager
def _folder(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
