"""A writable layer copied on the node, while what made it may still change it.

Every file is opened from its folder's descriptor and no link is followed: a folder that becomes a
link to the node's files meanwhile leads nowhere. What is no file, folder, link or OverlayFS's mark
of a removed file (a device 0:0) is left out.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

#: OverlayFS's own notes, such as that a folder hides the image's.
_NOTES = "trusted.overlay."
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
PIECE_BYTES = 1 << 20
#: Deeper than any tree of use, and far from Python's own limits.
MAX_DEPTH = 200


def copy_layer(source: Path, target: Path) -> None:
    """Copy the content of the folder `source` into the empty folder `target`.

    Raises OSError: ENOSPC where it does not fit, ELOOP where the tree is deeper than any of use.
    """
    ends = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (source, target)]
    try:
        _copy_folder(*ends, 0)
    finally:
        for end in ends:
            os.close(end)


def _copy_folder(source: int, target: int, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise OSError(errno.ELOOP, "the tree is too deep to be copied")
    for name in os.listdir(source):
        try:
            _copy_entry(source, target, name, depth)
        except FileNotFoundError:
            continue  # it went meanwhile
    _copy_marks(source, target)


def _copy_entry(source: int, target: int, name: str, depth: int) -> None:
    found = os.stat(name, dir_fd=source, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        os.chown(name, found.st_uid, found.st_gid, dir_fd=target, follow_symlinks=False)
    elif stat.S_ISCHR(found.st_mode) and found.st_rdev == 0:
        os.mknod(name, stat.S_IFCHR, 0, dir_fd=target)
    elif stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
        _copy_opened(source, target, name, depth)


def _copy_opened(source: int, target: int, name: str, depth: int) -> None:
    try:
        opened = os.open(name, _READ, dir_fd=source)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            return  # it became a link or a pipe
        raise
    try:
        kind = os.fstat(opened).st_mode
        if stat.S_ISDIR(kind):
            os.mkdir(name, 0o700, dir_fd=target)
            made = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=target)
        elif stat.S_ISREG(kind):
            made = os.open(name, _WRITE, 0o600, dir_fd=target)
        else:
            return
        try:
            if stat.S_ISDIR(kind):
                _copy_folder(opened, made, depth + 1)
            else:
                _copy_bytes(opened, made)
                _copy_marks(opened, made)
        finally:
            os.close(made)
    finally:
        os.close(opened)


def _copy_bytes(source: int, target: int) -> None:
    """Holes stay holes: a file may be a thousand times longer than its disk."""
    position, end = 0, os.fstat(source).st_size
    os.ftruncate(target, end)
    while position < end:
        try:
            position = os.lseek(source, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # a hole to the end
            raise
        hole = os.lseek(source, position, os.SEEK_HOLE)
        while position < hole:
            piece = os.pread(source, min(PIECE_BYTES, hole - position), position)
            if not piece:
                return  # it shrank
            position += os.pwrite(target, piece, position)


def _copy_marks(source: int, target: int) -> None:
    """Owner, mode, times, and OverlayFS's notes."""
    found = os.fstat(source)
    os.fchown(target, found.st_uid, found.st_gid)
    os.fchmod(target, stat.S_IMODE(found.st_mode) & 0o1777)
    for name in os.listxattr(source):
        if name.startswith(_NOTES):
            os.setxattr(target, name, os.getxattr(source, name))
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
