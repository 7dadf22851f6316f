"""Which element type each target has; a type that gives a model nothing loads is refused."""

from __future__ import annotations

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding.element_types import ElementType, element_type
from miles_periodic.plugins.fast_resharding.model_config import CONFIG, ModelConfig
from miles_periodic.plugins.fast_resharding.origin import Origin
from miles_periodic.plugins.fast_resharding.quantising import SCHEMES
from miles_periodic.plugins.fast_resharding.settings import SLUG

FROM_ORIGIN = "origin"
FROM_SOURCE = "source"
_WITH_SCALES = "Leave --dtype out and write FP8 in blocks, with their scales, with --quantize fp8."


def check_policy(dtype: str) -> None:
    """Refuse a `dtype` with which no model could be loaded, whatever the checkpoint holds."""
    if dtype in (FROM_ORIGIN, FROM_SOURCE):
        return
    if dtype in SCHEMES:
        raise PeriodicError(
            f"{dtype} is no element type but a quantisation.",
            feature=SLUG,
            target="--dtype",
            remedy=_WITH_SCALES,
        )
    element = element_type(dtype, "--dtype")
    if not _holds_weights(element):
        raise PeriodicError(
            f"Weights in {element.name} without scales are no model that can be loaded.",
            feature=SLUG,
            target="--dtype",
            expected="float64, float32, float16 or bfloat16",
            found=dtype,
            remedy=_WITH_SCALES,
        )


def target_element(
    name: str,
    fixed: str | None,
    source: ElementType,
    origin: Origin,
    config: ModelConfig,
    dtype: str,
) -> ElementType:
    """The type of the target `name` under the policy `dtype`.

    fixed: the type that the family gives it, which need not be one of weights. source: as it is
    stored.
    """
    if fixed == source.name and not _holds_weights(source):
        return source
    if not _holds_weights(source):
        raise PeriodicError(
            f"{name} is stored as {source.name}, and no key of the checkpoint holds its scales.",
            feature=SLUG,
            expected="weights in float64, float32, float16 or bfloat16, as Megatron saves them",
            found=source.name,
            remedy="Save the checkpoint with plain weights, then quantise with --quantize fp8.",
        )
    element = _chosen(name, fixed, source, origin, config, dtype)
    if not _holds_weights(element):
        raise PeriodicError(
            f"{name} would be written as {element.name}, without scales that no file has.",
            feature=SLUG,
            tree=str(config.folder),
            expected="a type of plain weights in its files and as dtype in " + CONFIG,
            found=element.name,
            remedy="Choose a type with --dtype, such as bfloat16; --quantize fp8 quantises.",
        )
    return element


def _chosen(
    name: str,
    fixed: str | None,
    source: ElementType,
    origin: Origin,
    config: ModelConfig,
    dtype: str,
) -> ElementType:
    if dtype == FROM_SOURCE:
        return source
    if dtype == FROM_ORIGIN and name in origin.elements:
        return origin.elements[name]
    if fixed:
        return element_type(fixed)
    return config.element if dtype == FROM_ORIGIN else element_type(dtype, "--dtype")


def _holds_weights(element: ElementType) -> bool:
    """Whether values mean weights without anything beside them."""
    return element.is_float and element.itemsize > 1
