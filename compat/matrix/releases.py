"""The releases in range, kept as data in `releases.toml`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.nearest_name import did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FILE = Path(__file__).with_name("releases.toml")


@dataclass(frozen=True, slots=True)
class Release:
    """One wheel of the package index.

    distribution, version: as the index has them. upstreams: the packages in the wheel.
    python: the interpreter, such as `3.11`, whose wheel is read.
    """

    distribution: str
    version: str
    upstreams: tuple[str, ...]
    python: str

    @property
    def name(self) -> str:
        """`distribution==version`, as it is asked for."""
        return f"{self.distribution}=={self.version}"

    @property
    def label(self) -> str:
        """`distribution-version`, as files and folders are named."""
        return f"{self.distribution}-{self.version}"

    def trees(self, folder: Path) -> dict[str, Tree]:
        """Upstream to its tree in the folder into which the wheel was unpacked."""
        return {upstream: Tree.at(upstream, folder) for upstream in self.upstreams}


def known_releases() -> tuple[Release, ...]:
    """Every release in range: by distribution as in the file, oldest first."""
    return tuple(
        Release(distribution, version, tuple(part["upstreams"]), part["python"])
        for distribution, part in _read().items()
        for version in part["releases"]
    )


def release_named(name: str) -> Release:
    """`DISTRIBUTION==VERSION` as a release, whether it is in range yet or not.

    Raises PeriodicError on another form, a distribution that is none of ours and a bad version.
    """
    distribution, equals, version = name.partition("==")
    if not (equals and distribution and version):
        raise PeriodicError(
            f"{name!r} is not a release.", remedy="Write it as sglang==0.5.23, without spaces."
        )
    known = _read()
    if distribution not in known:
        raise PeriodicError(
            f"{distribution!r} is no distribution of the matrix.",
            expected=", ".join(known),
            found=distribution,
            remedy=did_you_mean(distribution, list(known)),
        )
    try:
        Version(version)
    except InvalidVersion as error:
        raise PeriodicError(
            f"{version!r} is not a version.", remedy="Write one such as 0.5.23 or 0.5.12.post1."
        ) from error
    part = known[distribution]
    return Release(distribution, version, tuple(part["upstreams"]), part["python"])


def chosen(names: list[str]) -> tuple[Release, ...]:
    """The releases of those names, which must be in range; all of them where no name is given."""
    known = {release.name: release for release in known_releases()}
    asked = [release_named(name).name for name in names]
    for name in asked:
        if name not in known:
            raise PeriodicError(
                f"{name} is not in the matrix.",
                remedy=f"Add it with: miles compat add {name}.",
            )
    return tuple(release for name, release in known.items() if not asked or name in asked)


def before(release: Release) -> Release | None:
    """The newest release in range of the same distribution that is older."""
    older = [
        known
        for known in known_releases()
        if known.distribution == release.distribution
        and Version(known.version) < Version(release.version)
    ]
    return max(older, key=lambda known: Version(known.version), default=None)


def add(release: Release) -> bool:
    """Write a release into its place in the file; False where it stands there already."""
    text = _FILE.read_text(encoding="utf-8")
    listed = tomllib.loads(text)[release.distribution]["releases"]
    if release.version in listed:
        return False
    ordered = sorted([*listed, release.version], key=Version)
    head, opening, rest = text.partition(f"[{release.distribution}]\n")
    table, bracket, tail = rest.partition("releases = [\n")
    lines = "".join(f'  "{version}",\n' for version in ordered)
    after = tail[tail.index("]\n") :]
    _FILE.write_text(head + opening + table + bracket + lines + after, encoding="utf-8")
    return True


def _read() -> dict[str, dict]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))
