"""Which roles the SGLang servers of a run can have, by its command line alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_PAIR = frozenset({"prefill", "decode"})
_ALL = frozenset({"regular", *_PAIR})
_GROUP = re.compile(r"""^[^#]*\bworker_type["']?\s*:\s*["']?(\w+)""", re.MULTILINE)


def roles_on(arguments: Sequence[str]) -> frozenset[str]:
    """The roles of the servers that Miles starts for the arguments of its script.

    A server YAML is searched for its groups' roles; one that cannot be read may hold any.
    """
    if _values(arguments, "--prefill-num-servers"):
        return _PAIR
    files = _values(arguments, "--sglang-config")
    if not files:
        return frozenset({"regular"})
    try:
        text = Path(files[-1]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return _ALL
    return frozenset(_GROUP.findall(text)) or _ALL


def _values(arguments: Sequence[str], option: str) -> list[str]:
    """What stands behind an option, as `--option value` or `--option=value`."""
    following = [*arguments[1:], ""]
    return [
        after if word == option else word.removeprefix(f"{option}=")
        for word, after in zip(arguments, following, strict=False)
        if word == option or word.startswith(f"{option}=")
    ]
