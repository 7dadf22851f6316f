"""Images on a node, by digest and by name.

FOLDER/<digest>/root/        the root file system
FOLDER/<digest>/image.json   its Python, what it was made of, when
FOLDER/names/<name>          the digest that a name stands for
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.nearest_name import did_you_mean
from miles_periodic.plugins.pbox.images import debian, oci
from miles_periodic.plugins.pbox.node.sandbox import Image

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_PYTHONS = ("usr/bin/python3", "usr/local/bin/python3", "opt/venv/bin/python3", "bin/python3")


@dataclass(frozen=True, slots=True)
class Stored:
    """One image of a store. names: empty of one that nobody asks for any more."""

    digest: str
    names: tuple[str, ...]
    root: Path
    python: str
    made_of: tuple[str, ...]
    made_at: float
    environment: dict[str, str] = field(default_factory=dict)

    def as_image(self, name: str) -> Image:
        """What a sandbox is started from."""
        return Image(name, self.root, self.python, self.environment)


class ImageStore:
    """The images below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def build(self, name: str, packages: Sequence[str] = debian.PACKAGES) -> Stored:
        """An image of Debian packages under a name; one of the same digest is used as it is."""
        _check(name)
        with self._scratch() as scratch:
            resolved = debian.resolve(packages, scratch)
            digest = debian.digest_of(resolved)
            if not (self.folder / digest).is_dir():
                made = scratch / "image"
                (made / "root").mkdir(parents=True, mode=0o755)
                debian.build(resolved, made / "root", scratch)
                self._publish(digest, made, made / "root", resolved)
        self._name(name, digest)
        return self.get(name)

    def pull(self, name: str, source: str) -> Stored:
        """An OCI image under a name; one of the same digest is fetched, but not unpacked again."""
        _check(name)
        with self._scratch() as scratch:
            fetched = oci.fetch(source, scratch)
            if not (self.folder / fetched.digest).is_dir():
                made = scratch / "image"
                made.mkdir(mode=0o755)
                environment = oci.unpack(fetched, made / "root", scratch)
                self._publish(fetched.digest, made, made / "root", [source], environment)
        self._name(name, fetched.digest)
        return self.get(name)

    def add_folder(self, name: str, root: Path) -> Stored:
        """An image of a root file system that lies elsewhere; it is used where it lies."""
        _check(name)
        root = root.resolve()
        digest = debian.digest_of(["folder", str(root)])
        if not (self.folder / digest).is_dir():
            with self._scratch() as scratch:
                made = scratch / "image"
                made.mkdir()
                self._publish(digest, made, root, [f"folder={root}"])
        self._name(name, digest)
        return self.get(name)

    def get(self, name: str) -> Stored:
        """The image of a name or digest. Raises PeriodicError where there is none."""
        images = self.all()
        for image in images:
            if name == image.digest or name in image.names:
                return image
        known = [each for image in images for each in image.names]
        raise PeriodicError(
            f"There is no image {name!r} on this node.",
            found=f"in {self.folder}: {', '.join(known) or 'no image at all'}",
            remedy=f"Make it with `miles pbox image build {name}`. "
            + (did_you_mean(name, known) if known else ""),
        )

    def all(self) -> list[Stored]:
        """Every image, the newest first."""
        names: dict[str, list[str]] = {}
        for file in sorted((self.folder / "names").glob("*")):
            names.setdefault(file.read_text().strip(), []).append(file.name)
        found = [
            Stored(path.parent.name, tuple(names.get(path.parent.name, ())), **_read(path))
            for path in self.folder.glob("*/image.json")
        ]
        return sorted(found, key=lambda image: -image.made_at)

    def remove(self, name: str) -> None:
        """Take a name away; the image goes with `prune` when it has none."""
        self.get(name)
        (self.folder / "names" / name).unlink(missing_ok=True)

    def prune(self) -> list[Stored]:
        """Remove every image without a name; which those were."""
        unnamed = [image for image in self.all() if not image.names]
        for image in unnamed:
            shutil.rmtree(self.folder / image.digest)
        return unnamed

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[Path]:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        with tempfile.TemporaryDirectory(prefix=".making-", dir=self.folder) as scratch:
            yield Path(scratch)

    def _publish(
        self,
        digest: str,
        made: Path,
        root: Path,
        made_of: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Put an image under its digest with one rename; another builder may have been first."""
        final = self.folder / digest
        facts = {
            "root": str(final / "root" if root == made / "root" else root),
            "python": _python_of(root),
            "made_of": list(made_of),
            "made_at": time.time(),
            "environment": dict(environment or {}),
        }
        (made / "image.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
        try:
            made.rename(final)
        except OSError:
            if not (final / "image.json").exists():
                raise

    def _name(self, name: str, digest: str) -> None:
        names = self.folder / "names"
        names.mkdir(exist_ok=True)
        staged = names.parent / f".{name}.{os.getpid()}"
        staged.write_text(digest)
        staged.rename(names / name)


def _read(file: Path) -> dict:
    facts = json.loads(file.read_text(encoding="utf-8"))
    return facts | {"root": Path(facts["root"]), "made_of": tuple(facts["made_of"])}


def _python_of(root: Path) -> str:
    for path in _PYTHONS:
        if os.path.lexists(root / path):
            return f"/{path}"
    raise PeriodicError(
        f"{root} has no Python, and a sandbox's process 1 is written in it.",
        expected="one of " + ", ".join(f"/{path}" for path in _PYTHONS),
        remedy="Add the package python3 (3.6 or later) to the image.",
    )


def _check(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise PeriodicError(
            f"{name!r} is no name for an image.",
            remedy="Use lower-case letters, digits, dots, dashes and underscores, 64 at most.",
        )
