"""Trees of files as tar archives, into /work and out of it, without trust in either.

Into it: plain files, folders and symbolic links, all below the folder that was asked for. What
else an archive holds (devices, hard links, names that lead upwards) ends the unpacking.
Out of it: the same kinds; what changes under the reader is left out, not followed.
"""

from __future__ import annotations

import errno
import os
import stat
import tarfile
from collections.abc import Iterator

from miles_periodic.plugins.pbox.node.beneath import WorkFiles, names_of
from miles_periodic.plugins.pbox.node.system_calls import open_in_root

PIECE_BYTES = 1 << 18
#: Deeper than any tree of use, and far from Python's own limits.
MAX_DEPTH = 200


def unpack(files: WorkFiles, path: str, source: int) -> int:
    """Unpack the tar archive that the descriptor `source` gives below `path`; how many files.

    Raises OSError: EINVAL where it is no archive or holds what is refused. What came before stays.
    """
    num_files = 0
    try:
        with os.fdopen(source, "rb") as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                _unpack_member(files, _below(path, member.name), archive, member)
                num_files += member.isfile()
    except tarfile.TarError as error:
        raise OSError(errno.EINVAL, f"it is no whole tar archive: {error}", path) from error
    return num_files


def _unpack_member(
    files: WorkFiles, path: str, archive: tarfile.TarFile, member: tarfile.TarInfo
) -> None:
    if member.isdir():
        if path:
            files.make_folder(path, member.mode)
    elif member.issym():
        files.make_link(path, member.linkname)
    elif member.isfile():
        content = archive.extractfile(member)
        with (
            files.staged(path, member.mode) as descriptor,
            os.fdopen(os.dup(descriptor), "wb", buffering=0) as file,
        ):
            while piece := content.read(PIECE_BYTES):
                view = memoryview(piece)
                while view:
                    view = view[file.write(view) :]
    else:
        raise OSError(errno.EINVAL, "only files, folders and symbolic links are taken", path)


def _below(folder: str, name: str) -> str:
    """A member's path below /work; empty for /work itself. Raises OSError where it leads out."""
    if name.startswith("/") or ".." in name.split("/"):
        raise OSError(errno.EINVAL, "a name in the archive leads out of its folder", name)
    names = [*_folder_names(folder), *(part for part in name.split("/") if part not in ("", "."))]
    return "/".join(names)


def _folder_names(path: str) -> list[str]:
    """The names of a folder below /work, none for /work itself."""
    return [] if path.strip("/") in ("", ".", "work") else names_of(path)


def check_folder(files: WorkFiles, path: str) -> None:
    """Raise OSError where `path` is no folder of /work, or EFBIG where it is no download."""
    folder = _open_folder(files, path)
    try:
        sizes = [found.st_size for _, _, found in _walk(folder, "", 0) if _is_file(found)]
    finally:
        os.close(folder)
    if sum(sizes) > files.most_bytes:
        raise OSError(errno.EFBIG, "the tree claims to be larger than its disk", path)


def pack(files: WorkFiles, path: str, sink: int) -> None:
    """Write a tar archive of the folder `path` into the descriptor `sink`, and close it."""
    with (
        os.fdopen(sink, "wb") as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        folder, left_bytes = _open_folder(files, path), files.most_bytes
        try:
            for name, descriptor, found in _walk(folder, "", 0):
                left_bytes -= found.st_size if _is_file(found) else 0
                if left_bytes < 0:
                    raise OSError(errno.EFBIG, "the tree grew beyond its disk", path)
                _pack_member(archive, name, descriptor, found)
        finally:
            os.close(folder)


def _is_file(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode)


def _open_folder(files: WorkFiles, path: str) -> int:
    below = "/".join(_folder_names(path)) or "."
    with files.root() as root:
        return open_in_root(root, below, os.O_RDONLY | os.O_DIRECTORY)


def _walk(folder: int, prefix: str, depth: int) -> Iterator[tuple[str, int | str, os.stat_result]]:
    """Name, and a descriptor of a file or folder, or the target of a link; each closed after."""
    if depth > MAX_DEPTH:
        raise OSError(errno.ELOOP, "the tree is too deep", prefix)
    for entry in sorted(os.listdir(folder)):
        name = f"{prefix}{entry}"
        try:
            what, found = _opened(folder, entry)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP, errno.EINVAL, errno.ENXIO):
                continue  # gone, or something else by now
            raise
        if isinstance(what, str):
            yield name, what, found
        elif what is not None:
            descriptor = what
            try:
                yield name, descriptor, found
                if stat.S_ISDIR(found.st_mode):
                    yield from _walk(descriptor, f"{name}/", depth + 1)
            finally:
                os.close(descriptor)


def _opened(folder: int, entry: str) -> tuple[int | str | None, os.stat_result]:
    """A descriptor, the target of a link, or none of what is neither file nor folder."""
    found = os.stat(entry, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        return os.readlink(entry, dir_fd=folder), found
    if not (_is_file(found) or stat.S_ISDIR(found.st_mode)):
        return None, found
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(entry, flags, dir_fd=folder)
    return descriptor, os.fstat(descriptor)


class _Whole:
    """A file of the length that was announced: one that shrinks meanwhile goes on with zeros."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, num_bytes: int) -> bytes:
        """The next bytes, never fewer."""
        data = bytearray()
        while len(data) < num_bytes and (piece := os.read(self._descriptor, num_bytes - len(data))):
            data += piece
        return bytes(data) + bytes(num_bytes - len(data))


def _pack_member(
    archive: tarfile.TarFile, name: str, what: int | str, found: os.stat_result
) -> None:
    member = tarfile.TarInfo(name)
    member.mode, member.mtime = stat.S_IMODE(found.st_mode) & 0o777, int(found.st_mtime)
    if isinstance(what, str):
        member.type, member.linkname = tarfile.SYMTYPE, what
        archive.addfile(member)
    elif stat.S_ISDIR(found.st_mode):
        member.type = tarfile.DIRTYPE
        archive.addfile(member)
    elif _is_file(found):
        member.size = found.st_size
        archive.addfile(member, _Whole(what))
