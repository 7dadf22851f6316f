"""A root file system from Debian's packages: apt resolves and downloads, dpkg-deb unpacks.

No package's scripts run and nothing is chrooted into but the image's own Python, to compile its
library once: without that, every start of Python in a sandbox compiles it again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import sh

from miles_periodic.hooks.errors import PeriodicError

#: What an image holds where nothing is asked for: a Python, and the usual tools in one program.
PACKAGES = ("python3", "busybox-static")
_FOLDERS = ("proc", "sys", "dev", "run", "tmp", "work", "root", "usr/local/bin", "var/tmp", "etc")
_MERGED = ("bin", "sbin", "lib", "lib64")
_LEFT_OUT = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/lintian")
_USERS = "root:x:0:0:root:/root:/bin/sh\nsandbox:x:1000:1000::/work:/bin/sh\n"
_GROUPS = "root:x:0:\nsandbox:x:1000:\n"


def resolve(packages: Sequence[str], scratch: Path) -> list[str]:
    """`name=version` of the packages and all that they depend on, sorted.

    Raises PeriodicError where apt knows one of them not, or has no lists.
    """
    said = _apt(scratch, "--simulate", "install", *packages)
    lines = [line.split() for line in said.splitlines() if line.startswith("Inst ")]
    return sorted(f"{words[1]}={words[2].lstrip('(')}" for words in lines)


def digest_of(resolved: Sequence[str]) -> str:
    """What names an image: the same packages in the same versions are the same image."""
    return hashlib.sha256("\n".join(resolved).encode()).hexdigest()[:16]


def build(resolved: Sequence[str], root: Path, scratch: Path) -> None:
    """Make the root file system in the empty folder `root`."""
    _apt(scratch, "--download-only", "install", *resolved)
    for folder in _MERGED:
        (root / "usr" / folder).mkdir(parents=True)
        (root / folder).symlink_to(f"usr/{folder}")
    for package in sorted((scratch / "archives").glob("*.deb")):
        _unpack(package, root)
    _finish(root)


def _apt(scratch: Path, *arguments: str) -> str:
    """Run apt-get as if nothing were installed; what it prints."""
    (scratch / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    (scratch / "status").touch()
    options = {
        "Dir::State::status": scratch / "status",
        "Dir::Cache::archives": scratch / "archives",
        "Debug::NoLocking": "1",
        "APT::Sandbox::User": "root",
        "APT::Install-Recommends": "0",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    try:
        done = sh.Command("apt-get")(
            "-y", "-q", *words, *arguments, _tty_out=False, _return_cmd=True
        )
    except sh.CommandNotFound as error:
        raise PeriodicError(
            "Images are built from Debian's packages, and this machine has no apt-get.",
            remedy="Build the image on a Debian or Ubuntu machine and add its folder here.",
        ) from error
    except sh.ErrorReturnCode as error:
        raise PeriodicError(
            f"apt-get did not do {' '.join(arguments)[:200]!r}.",
            found=error.stderr.decode(errors="replace").strip()[-1000:],
            remedy="Name packages that exist, or run apt-get update first.",
        ) from error
    return done.stdout.decode(errors="replace")


def _unpack(package: Path, root: Path) -> None:
    """Unpack one package; /bin and its like stay links, as packages expect today."""
    script = 'set -e; dpkg-deb --fsys-tarfile "$1" | tar -x --keep-directory-symlink -C "$2"'
    sh.Command("bash")(
        "-o", "pipefail", "-c", script, "unpack", str(package), str(root), _tty_out=False
    )


def _finish(root: Path) -> None:
    """What packages' scripts would have done, as far as a sandbox needs it."""
    for folder in _FOLDERS:
        (root / folder).mkdir(parents=True, exist_ok=True)
    for folder in ("tmp", "var/tmp"):
        (root / folder).chmod(0o1777)
    (root / "etc/passwd").write_text(_USERS)
    (root / "etc/group").write_text(_GROUPS)
    sh.Command("rm")("-rf", *(str(root / folder) for folder in _LEFT_OUT))
    busybox = root / "usr/bin/busybox"
    if busybox.exists():
        for name in sh.Command(str(busybox))("--list", _tty_out=False).split():
            if not any((root / "usr" / folder / name).exists() for folder in ("bin", "sbin")):
                (root / "usr/bin" / name).symlink_to("busybox")
    _compile(root)


def _compile(root: Path) -> None:
    for library in sorted((root / "usr/lib").glob("python3*")):
        sh.Command("chroot")(
            str(root), "/usr/bin/python3", "-m", "compileall", "-q", "-j", "0",
            "--invalidation-mode", "unchecked-hash", f"/usr/lib/{library.name}",
            _tty_out=False, _ok_code=[0, 1],  # some packages ship files of another Python
        )  # fmt: skip
