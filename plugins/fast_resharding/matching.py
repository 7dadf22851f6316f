"""Which rule each tensor of a checkpoint falls under; what falls under none is an error."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.nearest_name import did_you_mean
from miles_periodic.plugins.fast_resharding.dcp_checkpoint import Checkpoint, SourceTensor
from miles_periodic.plugins.fast_resharding.families.table import Rule
from miles_periodic.plugins.fast_resharding.first_few import first_few
from miles_periodic.plugins.fast_resharding.settings import SLUG

NO_WEIGHTS = (
    r"(?:chained_\d+\.)?optimizer\..+",
    r"(?:.+\.)?_extra_state(?:/.+)?",
    r"common_state(?:/.+)?",
    r"rng_state(?:/.+)?",
    r"rerun_state_machine_state(?:/.+)?",
)
"""Keys that hold a trainer's state: read by nothing but a trainer."""


@dataclass(frozen=True)
class Match:
    """A source under its rule. layer, expert: the numbers in its key, None where it has none."""

    source: SourceTensor
    rule: Rule
    layer: int | None
    expert: int | None

    def members(self) -> Iterator[tuple[tuple[int, ...], int | None, int | None]]:
        """(indices on the stacked axes, layer, expert) of everything that the source stacks."""
        for layer_index, layer in self._along(self.rule.layers, self.layer):
            every = range(self.rule.experts) if self.rule.experts else None
            for expert_index, expert in self._along(every, self.expert):
                yield layer_index + expert_index, layer, expert

    @staticmethod
    def _along(numbers: Sequence[int] | None, named: int | None):
        if numbers is None or named is not None:
            return (((), named),)
        return (((index,), number) for index, number in enumerate(numbers))

    @property
    def num_stacked_axes(self) -> int:
        stacks_layers = self.rule.layers is not None and self.layer is None
        return stacks_layers + bool(self.rule.experts and self.expert is None)


@dataclass(frozen=True)
class Matched:
    """matches: sources that are weights. ignored: keys of tensors that are not."""

    matches: tuple[Match, ...]
    ignored: tuple[str, ...]


def match_sources(
    checkpoint: Checkpoint, rules: Sequence[Rule], ignore: Iterable[str] = ()
) -> Matched:
    """A rule for every tensor and object of the checkpoint, or an error that names those without.

    ignore: further patterns of whole keys that are no weights.
    """
    no_weights = (re.compile("|".join(NO_WEIGHTS)), *map(_pattern, ignore))
    ignored, matches, unknown = [], [], []
    for key in (*sorted(checkpoint.tensors), *checkpoint.objects):
        source = checkpoint.tensors.get(key)
        found = [] if source is None else list(_matches(source, rules))
        if len(found) > 1:
            raise _ambiguous(key, found)
        if any(pattern.fullmatch(key) for pattern in no_weights):
            ignored.append(key)
        elif found:
            matches.append(_checked(found[0], checkpoint))
        else:
            unknown.append(key)
    if unknown:
        raise _unknown(unknown, checkpoint, rules)
    return Matched(tuple(matches), tuple(k for k in ignored if k in checkpoint.tensors))


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise PeriodicError(
            f"{text!r} is no regular expression: {error}.",
            feature=SLUG,
            remedy="Give --ignore a pattern for whole keys.",
        ) from error


def _matches(source: SourceTensor, rules: Sequence[Rule]) -> Iterator[Match]:
    for rule in rules:
        found = rule.pattern.fullmatch(source.key)
        if found is None:
            continue
        numbers = {name: int(text) for name, text in found.groupdict().items() if text}
        layer, expert = numbers.get("layer"), numbers.get("expert")
        if layer is not None and layer not in rule.layers:
            continue
        if layer is None and rule.layers is not None and not rule.layers:
            continue
        if expert is not None and expert >= rule.experts:
            continue
        yield Match(source, rule, layer, expert)


def _checked(match: Match, checkpoint: Checkpoint) -> Match:
    """The match, if the source has the shape that the config says."""
    rule, shape = match.rule, match.source.shape
    lead = [] if rule.layers is None or match.layer is not None else [len(rule.layers)]
    stacks_some = bool(lead) and tuple(rule.layers) != tuple(range(len(rule.layers)))
    lead += [rule.experts] if rule.experts and match.expert is None else []
    expected = (*lead, *rule.shape)
    fits = shape == expected
    if rule.padded:
        fits = shape[1:] == expected[1:] and bool(shape) and shape[0] >= expected[0]
    if fits and not stacks_some:
        return match
    raise PeriodicError(
        f"{match.source.key} has another shape than the model's config says.",
        feature=SLUG,
        tree=str(checkpoint.folder),
        expected=f"{list(expected)}" + (" or more rows" if rule.padded else ""),
        found=f"{list(shape)}",
        remedy="Give the config.json of the model that was trained with --config.",
    )


def _ambiguous(key: str, found: Sequence[Match]) -> PeriodicError:
    return PeriodicError(
        f"{key} falls under several rules of the family.",
        feature=SLUG,
        found="; ".join(f"{m.rule.source} to {m.rule.parts[0].target}" for m in found),
        remedy="Make the family's rules say something else of each key.",
    )


def _unknown(unknown: Sequence[str], checkpoint: Checkpoint, rules: Sequence[Rule]):
    sources = {rule.source for rule in rules}
    return PeriodicError(
        f"The checkpoint has {len(unknown)} keys that the family does not know: "
        f"{first_few(unknown)}.",
        feature=SLUG,
        tree=str(checkpoint.folder),
        target=unknown[0],
        remedy=did_you_mean(unknown[0], sources)
        + " Choose the family with --model-type, or say with --ignore that a key is no weight.",
    )
