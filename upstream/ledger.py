"""The ledger: the upstream pull requests that matter to each feature, as data."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORIES = {
    "sglang": "sgl-project/sglang",
    "miles": "radixark/miles",
    "megatron": "NVIDIA/Megatron-LM",
}
STATES = ("open", "merged", "closed")


@dataclass(frozen=True, slots=True)
class PullRequest:
    """One entry.

    key: `upstream#number`. state: as of `seen`. opened, seen: ISO dates (opened may be a month).
    first_release: the first release that contains it, or empty. proof: how to tell a tree that
    has it from one that has not.
    """

    key: str
    title: str
    state: str
    opened: str
    seen: str
    proof: str
    first_release: str = ""

    @property
    def url(self) -> str:
        upstream, _, number = self.key.partition("#")
        return f"https://github.com/{REPOSITORIES[upstream]}/pull/{number}"


def ledger() -> dict[str, PullRequest]:
    """Key to entry; ValueError where an entry is malformed."""
    text = Path(__file__).with_name("ledger.toml").read_text(encoding="utf-8")
    entries = {key: PullRequest(key=key, **part) for key, part in tomllib.loads(text).items()}
    for entry in entries.values():
        if entry.state not in STATES or entry.key.partition("#")[0] not in REPOSITORIES:
            raise ValueError(f"ledger.toml: {entry.key} has an unknown state or upstream")
    return entries
