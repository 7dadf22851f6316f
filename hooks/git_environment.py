"""The environment for git in a folder that we name, also where a git hook or alias runs us."""

from __future__ import annotations

from collections.abc import Mapping

#: git sets them for what it runs itself; they name that repository, whatever `-C` says.
_OF_A_REPOSITORY = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_COMMON_DIR",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
)


def of_no_repository(environ: Mapping[str, str]) -> dict[str, str]:
    """Those variables without the ones that point git at a repository."""
    return {name: value for name, value in environ.items() if name not in _OF_A_REPOSITORY}
