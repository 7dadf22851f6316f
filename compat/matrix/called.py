"""Which bindings tests really call in which release: kept as data in `called.toml`.

The tests that a part names hold it against what they count. A release whose targets have the same
shapes as there says so in the matrix; of any other one, that it is planned only.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@lru_cache(maxsize=1)
def calls() -> Mapping[str, Mapping[str, frozenset[str]]]:
    """Label of a recorded tree to test file to the bindings that it calls there."""
    text = Path(__file__).with_name("called.toml").read_text(encoding="utf-8")
    return {
        label: {test: frozenset(names) for test, names in by_test.items()}
        for label, by_test in tomllib.loads(text).items()
    }


def called_in(label: str) -> frozenset[str]:
    """The bindings that some test calls in that tree."""
    return frozenset().union(*calls().get(label, {}).values())


def planned_only(bindings: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Those of some bindings that no test calls where their targets have these shapes, sorted.

    bindings: name to the labels of the recorded trees in which all targets have this shape.
    """
    return tuple(
        sorted(
            name
            for name, labels in bindings.items()
            if not any(name in called_in(label) for label in labels)
        )
    )
