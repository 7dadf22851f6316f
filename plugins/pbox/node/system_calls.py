"""Linux calls that Python lacks: mount, umount2, openat2; each raises OSError with its errno."""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)
_OPENAT2 = 437

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_IN_ROOT = 0x10

MS_NOSUID = 0x2
MS_NODEV = 0x4
_MNT_DETACH = 0x2
_UMOUNT_NOFOLLOW = 0x8
_PR_SET_CHILD_SUBREAPER = 36


class _OpenHow(ctypes.Structure):
    _fields_ = [
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    ]


def mount(kind: str, target: str, options: str, flags: int = 0) -> None:
    """Mount a file system of a kind that needs no device at `target`."""
    done = _libc.mount(
        kind.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode()
    )
    _check(done, target)


def unmount(target: str, *, lazily: bool = False) -> None:
    """Unmount what is at `target`; lazily: also while it is busy, it ends with its last user."""
    flags = _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazily else 0)
    _check(_libc.umount2(os.fsencode(target), flags), target)


def adopt_orphans() -> None:
    """Become the parent of processes whose parent ended below this one, so as to reap them."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "this process")


def open_in_root(root: int, path: str, flags: int, mode: int = 0) -> int:
    """Open `path` with the folder `root` (a descriptor) as its root: no link leads out of it.

    A signal or a rename at the same time makes the kernel ask for another try; it is made.
    """
    wanted_mode = mode if flags & (os.O_CREAT | os.O_TMPFILE) else 0
    how = _OpenHow(flags | os.O_CLOEXEC, wanted_mode, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)
    for _ in range(64):
        opened = _libc.syscall(
            _OPENAT2, root, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how)
        )
        if opened >= 0 or ctypes.get_errno() not in (11, 4):  # EAGAIN, EINTR
            break
    _check(opened, path)
    return opened


def _check(done: int, what: str) -> None:
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
