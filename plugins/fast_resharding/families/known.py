"""Which families there are: ours, and those that other packages bring."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.nearest_name import did_you_mean
from miles_periodic.plugins.fast_resharding.families import deepseek, glm, gpt_oss, llama, qwen
from miles_periodic.plugins.fast_resharding.families.table import Family
from miles_periodic.plugins.fast_resharding.settings import SLUG

#: An entry point of this group is a sequence of `Family`.
GROUP = "miles_periodic.reshard_families"
OURS: tuple[Family, ...] = (
    *llama.FAMILIES,
    *qwen.FAMILIES,
    *deepseek.FAMILIES,
    *glm.FAMILIES,
    *gpt_oss.FAMILIES,
)


def all_families() -> tuple[Family, ...]:
    """Ours, then those of installed packages."""
    brought = (family for point in entry_points(group=GROUP) for family in point.load())
    return (*OURS, *brought)


def family_of(model_type: str, families: Sequence[Family]) -> Family:
    """The one family that a model type, or its own name, stands for."""
    found = [f for f in families if model_type == f.name or model_type in f.model_types]
    if len(found) == 1:
        return found[0]
    known = sorted({name for family in families for name in family.model_types})
    if found:
        raise PeriodicError(
            f"Several families take the model type {model_type!r}.",
            feature=SLUG,
            found=", ".join(family.name for family in found),
            remedy="Say with --model-type which family is meant, by its name.",
        )
    raise PeriodicError(
        f"No family is known for the model type {model_type!r}.",
        feature=SLUG,
        expected=", ".join(known),
        remedy=did_you_mean(model_type, known)
        + " A package can bring a family of its own with the entry point "
        f"group {GROUP}.",
    )
