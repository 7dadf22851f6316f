"""Element types of tensors: one name for each in torch, safetensors and in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.nearest_name import did_you_mean
from miles_periodic.plugins.fast_resharding.settings import SLUG


@dataclass(frozen=True)
class ElementType:
    """name: torch's; code: safetensors'; itemsize: bytes of one element."""

    name: str
    code: str
    itemsize: int
    is_float: bool = True


ELEMENT_TYPES = {
    each.name: each
    for each in (
        ElementType("float64", "F64", 8),
        ElementType("float32", "F32", 4),
        ElementType("float16", "F16", 2),
        ElementType("bfloat16", "BF16", 2),
        ElementType("float8_e4m3fn", "F8_E4M3", 1),
        ElementType("float8_e5m2", "F8_E5M2", 1),
        ElementType("float8_e8m0fnu", "F8_E8M0", 1),
        ElementType("int64", "I64", 8, is_float=False),
        ElementType("int32", "I32", 4, is_float=False),
        ElementType("int16", "I16", 2, is_float=False),
        ElementType("int8", "I8", 1, is_float=False),
        ElementType("uint8", "U8", 1, is_float=False),
        ElementType("bool", "BOOL", 1, is_float=False),
    )
}
BY_CODE = {each.code: each for each in ELEMENT_TYPES.values()}


def element_type(name: str, where: str = "") -> ElementType:
    """The type of that name in torch; `where` says who asked for it, for the error."""
    known = ELEMENT_TYPES.get(name.removeprefix("torch."))
    if known is None:
        raise PeriodicError(
            f"No element type is named {name!r}.",
            feature=SLUG,
            target=where,
            remedy=did_you_mean(name, ELEMENT_TYPES),
        )
    return known
