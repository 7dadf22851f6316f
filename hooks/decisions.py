"""The closed union of answers that a plan can give for one feature on one upstream."""

from __future__ import annotations

from dataclasses import dataclass

UPSTREAMS = ("sglang", "megatron", "miles")


@dataclass(frozen=True, slots=True)
class Evidence:
    """One place in an upstream's sources that a decision rests on.

    path: relative to the folder that holds the package, such as `sglang/srt/managers/io_struct.py`.
    line: 1-based; 0 where the evidence is that something is not there.
    what: the symbol and what was seen of it.
    """

    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}" if self.line else f"{self.path}: {self.what}"


@dataclass(frozen=True, slots=True)
class Native:
    """The upstream has it: declared *and consumed*. Nothing is bound."""

    reason: str
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Inject:
    """The upstream lacks it, and every target that our bindings need has a known shape.

    in_sources: those of the bindings that a patch set has put into the tree's sources.
    """

    reason: str
    evidence: tuple[Evidence, ...] = ()
    bindings: tuple[str, ...] = ()
    in_sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Off:
    """The user did not ask for the feature: no hook of it exists anywhere."""

    reason: str
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Unsupported:
    """It cannot be had on this tree. `remedy` starts with a verb."""

    reason: str
    remedy: str
    evidence: tuple[Evidence, ...] = ()
    target: str = ""
    expected: str = ""
    found: str = ""


Decision = Native | Inject | Off | Unsupported


def word(decision: Decision) -> str:
    """The decision's name as it stands in tables and in `miles plan --json`."""
    return type(decision).__name__.lower()
