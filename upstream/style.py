"""An upstream's own style: the tools that its .pre-commit-config.yaml names, with its arguments.

pre-commit itself would fetch tools; here those run that are installed, and the others are named.
A tool that changes or refuses a file as it stands in the base is not run on it: its complaints
would not be about our change.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from miles_periodic.hooks.errors import PeriodicError

CONFIGURATION = ".pre-commit-config.yaml"
#: Id of a hook to the package and the words that run it.
_TOOLS: Mapping[str, tuple[str, ...]] = {
    "black": ("black", "--quiet"),
    "black-jupyter": ("black", "--quiet"),
    "isort": ("isort", "--quiet"),
    "ruff": ("ruff", "check", "--quiet"),
    "ruff-check": ("ruff", "check", "--quiet"),
    "ruff-format": ("ruff", "format", "--quiet"),
    "autoflake": ("autoflake",),
    "pylint": ("pylint",),
}


@dataclass(frozen=True, slots=True)
class Tool:
    """One hook of the configuration; files and exclude are patterns of paths, rev its release."""

    hook: str
    words: tuple[str, ...]
    args: tuple[str, ...]
    rev: str
    files: str = ""
    exclude: str = "^$"

    @property
    def package(self) -> str:
        """What has to be installed."""
        return self.words[0]

    @property
    def installed(self) -> bool:
        """Whether this Python can run it."""
        return importlib.util.find_spec(self.package) is not None

    def wants(self, path: str) -> bool:
        """Whether the hook is for that path."""
        return (
            path.endswith(".py")
            and bool(re.search(self.files, path))
            and not re.search(self.exclude, path)
        )

    def __str__(self) -> str:
        if not self.installed:
            return f"{self.hook}: {self.package} is not installed"
        held = version(self.package)
        pinned = re.sub(r"^.*[/:]|^v", "", self.rev)
        return f"{self.hook} {held}" + (f" (pinned: {pinned})" if pinned != held else "")

    def run(self, folder: Path, paths: Sequence[str]) -> str:
        """Run it on files of a work tree; what it complains of, or an empty text."""
        done = subprocess.run(
            [sys.executable, "-m", *self.words, *self.args, "--", *paths],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        return (done.stdout + done.stderr).strip() if done.returncode else ""


def tools_of(configuration: str | None) -> Iterator[Tool]:
    """The hooks of a configuration that look at Python; without one there are none."""
    import yaml

    if configuration is None:
        return
    table: Mapping[str, Any] = yaml.safe_load(configuration) or {}
    for repository in table.get("repos", ()):
        for hook in repository.get("hooks", ()):
            if words := _TOOLS.get(hook["id"]):
                yield Tool(
                    hook["id"],
                    words,
                    tuple(map(str, hook.get("args", ()))),
                    str(repository.get("rev", "")),
                    hook.get("files", ""),
                    hook.get("exclude", "^$"),
                )


def styled(
    folder: Path,
    changed: Mapping[str, str],
    before: Mapping[str, str | None],
    tools: Sequence[Tool],
) -> Iterator[str]:
    """Write changed files into a work tree in its style; what was not run on which file, and why.

    before: the same paths as they stand in the base, None where a file is new.
    """
    runs: list[tuple[Tool, list[str]]] = []
    for tool in (each for each in tools if each.installed):
        wanted = [path for path in changed if tool.wants(path)]
        left = [path for path in wanted if not _settled(tool, folder, path, before[path])]
        yield from (f"{tool.hook} is not run on {path}: the base itself fails it" for path in left)
        runs.append((tool, [path for path in wanted if path not in left]))
    for path, text in changed.items():
        _write(folder / path, text)
    for tool, paths in runs:
        if paths and (said := tool.run(folder, paths)):
            raise PeriodicError(
                f"{tool.hook}, which the upstream runs, does not accept the change.",
                tree=str(folder),
                target=", ".join(paths),
                found=said,
                remedy="Report it: the change is to be repaired. Nothing was kept.",
            )


def _settled(tool: Tool, folder: Path, path: str, text: str | None) -> bool:
    """Whether a tool leaves the base's file as it is, and says nothing."""
    if text is None:
        return True
    _write(folder / path, text)
    said = tool.run(folder, [path])
    return not said and (folder / path).read_bytes() == text.encode(errors="surrogateescape")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(errors="surrogateescape"))
