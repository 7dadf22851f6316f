"""From a checkpoint's metadata and a family's rules to targets, each with what fills it.

Every element of a source goes to exactly one place or is padding that is named; every target of
the family is filled exactly once. Anything else is an error before a tensor is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding.dcp_checkpoint import Checkpoint, check_whole
from miles_periodic.plugins.fast_resharding.element_types import ElementType, element_type
from miles_periodic.plugins.fast_resharding.families.table import Family, Part, Rule
from miles_periodic.plugins.fast_resharding.first_few import first_few
from miles_periodic.plugins.fast_resharding.matching import Match, match_sources
from miles_periodic.plugins.fast_resharding.model_config import ModelConfig
from miles_periodic.plugins.fast_resharding.origin import Origin
from miles_periodic.plugins.fast_resharding.quantising import check_scheme
from miles_periodic.plugins.fast_resharding.settings import SLUG
from miles_periodic.plugins.fast_resharding.targets import Piece, Target, quantised

FROM_ORIGIN = "origin"
FROM_SOURCE = "source"


@dataclass(frozen=True)
class SourceBytes:
    """What becomes of the bytes of a checkpoint's tensors.

    converted_bytes: they become targets. padding_bytes: rows beyond the vocabulary.
    ignored_bytes: a trainer's state.
    """

    converted_bytes: int
    padding_bytes: int
    ignored_bytes: int


@dataclass(frozen=True)
class Plan:
    """targets: in the order in which shards hold them, the same for every parallel layout."""

    targets: tuple[Target, ...]
    source_bytes: SourceBytes


@dataclass(frozen=True)
class _Wanted:
    """A target that the family's rules name. order: its place among all."""

    order: tuple
    shape: tuple[int, ...]
    element: str | None
    copy_of: str = ""
    quantises: bool = False


def plan_targets(
    checkpoint: Checkpoint,
    config: ModelConfig,
    family: Family,
    origin: Origin,
    *,
    dtype: str = FROM_ORIGIN,
    ignore: Iterable[str] = (),
    quantize: str | None = None,
) -> Plan:
    """All targets of a checkpoint.

    dtype: `origin` (the type that each tensor has there, else what the family or the config
    says), `source` (as stored) or the name of a type for all but those that the family fixes.
    quantize: a scheme of quantising.py for the matrices that the family names, or None.
    """
    rules = family.rules(config)
    matched = match_sources(checkpoint, rules, ignore)
    check_whole(checkpoint, (match.source.key for match in matched.matches))
    wanted = _wanted(rules, origin)
    pieces = _pieces(matched.matches)
    _check_filled(wanted, pieces, checkpoint)
    _check_against_origin(wanted, origin, config)
    targets = [
        _target(
            name,
            wanted[name],
            pieces[wanted[name].copy_of or name],
            checkpoint,
            origin,
            config,
            dtype,
        )
        for name in sorted(wanted, key=lambda name: wanted[name].order)
    ]
    if quantize is not None:
        check_scheme(quantize)
        targets = [quantised(t) if wanted[t.name].quantises else t for t in targets]
        _check_quantised(targets, family)
    return Plan(tuple(targets), _source_bytes(checkpoint, matched.matches, matched.ignored))


def _wanted(rules: Sequence[Rule], origin: Origin) -> dict[str, _Wanted]:
    wanted: dict[str, _Wanted] = {}
    first_layered = next((n for n, rule in enumerate(rules) if rule.layers is not None), len(rules))
    for number, rule in enumerate(rules):
        for layer in (None,) if rule.layers is None else rule.layers:
            place = -1 if number < first_layered else inf
            place = place if layer is None else layer + rule.first_layer
            for expert in range(rule.experts) if rule.experts else (None,):
                for nth, part in enumerate(rule.parts):
                    order = (place, number, -1 if expert is None else expert, nth)
                    for name, found in _names(rule, part, layer, expert, origin, order):
                        wanted.setdefault(name, found)
    return wanted


def _names(
    rule: Rule, part: Part, layer: int | None, expert: int | None, origin: Origin, order: tuple
) -> Iterator[tuple[str, _Wanted]]:
    """The target that a part is, then its copies where the origin has them."""
    name, shape = rule.target(part, layer, expert), rule.target_shape(part)
    yield name, _Wanted(order, shape, part.element, quantises=part.quantises)
    for copy in part.copies:
        if copy in origin.names:
            yield copy, _Wanted((*order, copy), shape, part.element, copy_of=name)


def _pieces(matches: Sequence[Match]) -> dict[str, list[Piece]]:
    pieces: dict[str, list[Piece]] = {}
    for match in matches:
        starts = _starts(match.rule.parts)
        for lead, layer, expert in match.members():
            for part, start in zip(match.rule.parts, starts, strict=True):
                name = match.rule.target(part, layer, expert)
                pieces.setdefault(name, []).append(_piece(match, part, start, lead, expert))
    return pieces


def _piece(
    match: Match, part: Part, start: int, lead: tuple[int, ...], expert: int | None
) -> Piece:
    rule = match.rule
    alone = part.stacked is None
    return Piece(
        match.source.key,
        lead,
        rule.groups,
        rule.group_rows,
        start,
        part.rows,
        part.stacked,
        None if alone else expert,
    )


def _starts(parts: Sequence[Part]) -> list[int]:
    starts, at = [], 0
    for part in parts:
        starts.append(at)
        at += part.rows
    return starts


def _check_filled(
    wanted: Mapping[str, _Wanted], pieces: Mapping[str, Sequence[Piece]], checkpoint: Checkpoint
) -> None:
    missing = [n for n, w in wanted.items() if not w.copy_of and n not in pieces]
    for name, found in pieces.items():
        places = [(p.expert, p.stacked.slot if p.stacked else 0) for p in found]
        if len(set(places)) < len(places):
            raise _doubled(name, found, checkpoint)
        stacked = found[0].stacked
        if stacked and len(places) < stacked.shape[0] * stacked.num_slots:
            missing.append(name)
    if missing:
        raise PeriodicError(
            f"The checkpoint does not fill {len(missing)} tensors of the model: "
            f"{first_few(missing)}.",
            feature=SLUG,
            tree=str(checkpoint.folder),
            target=missing[0],
            remedy="Give the config.json of the model that was trained; where training left out "
            "layers that predict further tokens, add --set num_nextn_predict_layers=0.",
        )


def _doubled(name: str, found: Sequence[Piece], checkpoint: Checkpoint) -> PeriodicError:
    return PeriodicError(
        f"Several tensors of the checkpoint would be written to {name}.",
        feature=SLUG,
        tree=str(checkpoint.folder),
        target=name,
        found=", ".join(sorted({piece.source for piece in found})),
        remedy="Leave one of them out with --ignore.",
    )


def _check_against_origin(
    wanted: Mapping[str, _Wanted], origin: Origin, config: ModelConfig
) -> None:
    """The target has the tensors that the origin has, but for layers that the config leaves out."""
    if not origin.names:
        return
    num_layers = config.num_layers + config.num_extra_layers
    expected = {name for name in origin.names if _layer(name) < num_layers}
    for problem, names in (
        ("has tensors that the conversion would not write", expected - set(wanted)),
        ("lacks tensors that the conversion would write", set(wanted) - expected),
    ):
        if names:
            raise PeriodicError(
                f"The model that training started from {problem}: {first_few(sorted(names))}.",
                feature=SLUG,
                tree=str(config.folder),
                target=min(names),
                remedy="Give the right model with --config and --model-type, or a folder without "
                "weights to leave this comparison out.",
            )


def _layer(name: str) -> int:
    words = name.split(".")
    numbers = [
        int(b) for a, b in zip(words, words[1:], strict=False) if a == "layers" and b.isdecimal()
    ]
    return numbers[0] if numbers else -1


def _target(
    name: str,
    wanted: _Wanted,
    pieces: Sequence[Piece],
    checkpoint: Checkpoint,
    origin: Origin,
    config: ModelConfig,
    dtype: str,
) -> Target:
    stored = {checkpoint.tensors[piece.source].element for piece in pieces}
    if len(stored) > 1:
        raise PeriodicError(
            f"The parts of {name} are stored in several element types.",
            feature=SLUG,
            found=", ".join(sorted(each.name for each in stored)),
            remedy="Save the checkpoint with all experts in one element type.",
        )
    (source,) = stored
    element = _element(name, wanted, source, origin, config, dtype)
    if element != source and not (element.is_float and source.is_float):
        raise PeriodicError(
            f"{name} cannot change from {source.name} to {element.name}.",
            feature=SLUG,
            remedy="Keep it as it is stored with --dtype source.",
        )
    return Target(name, wanted.shape, element, source, tuple(pieces))


def _check_quantised(targets: Sequence[Target], family: Family) -> None:
    if not any(target.scales for target in targets):
        raise PeriodicError(
            f"The family {family.name} names no matrices that are quantised in blocks.",
            feature=SLUG,
            remedy="Leave --quantize out.",
        )


def _element(
    name: str,
    wanted: _Wanted,
    source: ElementType,
    origin: Origin,
    config: ModelConfig,
    dtype: str,
) -> ElementType:
    if dtype == FROM_SOURCE:
        return source
    if dtype == FROM_ORIGIN and name in origin.elements:
        return origin.elements[name]
    if wanted.element:
        return element_type(wanted.element)
    return config.element if dtype == FROM_ORIGIN else element_type(dtype, "--dtype")


def _source_bytes(
    checkpoint: Checkpoint, matches: Sequence[Match], ignored: Sequence[str]
) -> SourceBytes:
    total = sum(match.source.num_bytes for match in matches)
    padding = sum(_padding_bytes(match) for match in matches if match.rule.padded)
    left_out = sum(checkpoint.tensors[key].num_bytes for key in ignored)
    return SourceBytes(total - padding, padding, left_out)


def _padding_bytes(match: Match) -> int:
    source = match.source
    extra = replace(source, shape=(source.shape[0] - match.rule.shape[0], *source.shape[1:]))
    return extra.num_bytes
