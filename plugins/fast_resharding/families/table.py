"""The language in which a family of models is written down: rules from sources to targets.

A rule takes one tensor of the checkpoint apart along its first axis and says where each part
goes. Sizes are elements. `{layer}` and `{expert}` stand in a source's name for a number, or for
nothing where the checkpoint stacks all of them in one tensor along an axis of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from miles_periodic.plugins.fast_resharding.model_config import ModelConfig


@dataclass(frozen=True)
class Stacked:
    """A target that holds all experts, `shape[0]` of them, each placed the same way.

    transposed: the part's rows become the target's last axis. slot, num_slots: the part's rows
    take every `num_slots`-th place there, starting with `slot`.
    """

    shape: tuple[int, ...]
    transposed: bool = False
    slot: int = 0
    num_slots: int = 1


@dataclass(frozen=True)
class Part:
    """Rows of a source, of each of its groups, and the target that they are.

    target: a name with `{layer}` and `{expert}`. stacked: None where the rows alone are the
    target. element: the one type that the target may have, else None. copies: further names that
    are written where the origin has them. quantises: whether it is among the matrices that a
    quantised model of the family holds in blocks.
    """

    target: str
    rows: int
    stacked: Stacked | None = None
    element: str | None = None
    copies: tuple[str, ...] = ()
    quantises: bool = False


@dataclass(frozen=True)
class Rule:
    """One kind of source tensor.

    parts: what each group's rows are, in order. columns: the sizes of all other axes. groups: how
    often the parts repeat along the first axis. layers: which numbers `{layer}` takes; None for
    names without it. first_layer: what a target's `{layer}` is more than the source's. experts:
    how many there are; 0 for names without them. padded: further rows may follow, which are
    padding and are left out.
    """

    source: str
    parts: tuple[Part, ...]
    columns: tuple[int, ...] = ()
    groups: int = 1
    layers: Sequence[int] | None = None
    first_layer: int = 0
    experts: int = 0
    padded: bool = False

    @property
    def group_rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def shape(self) -> tuple[int, ...]:
        """The source's shape without stacked axes and padding."""
        return (self.groups * self.group_rows, *self.columns)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches a whole key; its groups `layer` and `expert` are None where they are stacked."""
        text = re.escape(self.source)
        for name in ("layer", "expert"):
            text = text.replace(rf"\.\{{{name}\}}", rf"(?:\.(?P<{name}>\d+))?")
        return re.compile(text)

    def target_shape(self, part: Part) -> tuple[int, ...]:
        return part.stacked.shape if part.stacked else (self.groups * part.rows, *self.columns)

    def target(self, part: Part, layer: int | None, expert: int | None) -> str:
        shown = None if layer is None else layer + self.first_layer
        return part.target.format(layer=shown, expert=expert)


Rules = Callable[[ModelConfig], Sequence[Rule]]


@dataclass(frozen=True)
class Family:
    """Models of the same names and splits. model_types: as `config.json` has them."""

    name: str
    model_types: tuple[str, ...]
    rules: Rules


def in_layers(layers: Sequence[int], rules: Sequence[Rule], first_layer: int = 0) -> list[Rule]:
    """The rules of one layer, for each of `layers`."""
    return [replace(rule, layers=tuple(layers), first_layer=first_layer) for rule in rules]


def renamed(prefix: str, rules: Sequence[Rule], *, instead_of: str) -> list[Rule]:
    """The rules of a layer that the checkpoint holds under another name."""
    return [replace(rule, source=rule.source.replace(instead_of, prefix, 1)) for rule in rules]


def plain(rules: Sequence[Rule]) -> list[Rule]:
    """The rules of a family that has no matrices in blocks."""
    return [
        replace(rule, parts=tuple(replace(part, quantises=False) for part in rule.parts))
        for rule in rules
    ]


def whole(
    source: str, target: str, *shape: int, element: str | None = None, quantises: bool = False
) -> Rule:
    """A source that is one target."""
    part = Part(target, shape[0], element=element, quantises=quantises)
    return Rule(source, (part,), shape[1:])
