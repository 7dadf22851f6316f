"""Sources of an upstream as a git repository with one commit, for what works on checkouts."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, check=True)
    return done.stdout


def repository(sources: Path, folder: Path) -> Path:
    """A copy of a tree, all its files committed on `main` by a person."""
    leave_out = shutil.ignore_patterns(".git", "__pycache__")
    shutil.copytree(sources, folder, ignore=leave_out, symlinks=True, dirs_exist_ok=True)
    git(folder, "init", "--quiet", "--initial-branch", "main")
    git(folder, "config", "user.name", "A Person")
    git(folder, "config", "user.email", "person@example.org")
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "--quiet", "--message", "base")
    return folder
