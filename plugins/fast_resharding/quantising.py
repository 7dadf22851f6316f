"""FP8 in blocks, as DeepSeek-V3 is published and as SGLang and vLLM load it.

A matrix is cut into squares of 128 by 128, the last ones smaller. Each has one scale, its largest
magnitude over the largest that E4M3 has; the matrix holds values over scales, and beside it stands
`NAME_scale_inv`, FP32 [blocks of rows, blocks of columns], with which they are multiplied. A value
comes back within a sixteenth of itself, or within its scale over 1,024.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.nearest_name import did_you_mean
from miles_periodic.plugins.fast_resharding.element_types import ELEMENT_TYPES
from miles_periodic.plugins.fast_resharding.settings import SLUG

BLOCK = 128
SCHEMES = ("fp8",)
QUANTISED = ELEMENT_TYPES["float8_e4m3fn"]
SCALE = ELEMENT_TYPES["float32"]
LARGEST = 448.0
#: What a config says of such a model.
CONFIG_ENTRY = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [BLOCK, BLOCK],
}


#: Keys of a config, and files beside it, that say how a model's weights were quantised.
QUANTISATIONS = ("quantization_config", "compression_config")
QUANTISATION_FILES = ("hf_quant_config.json", "quant_config.json", "quantize_config.json")


def check_scheme(name: str) -> None:
    if name not in SCHEMES:
        raise PeriodicError(
            f"No quantisation is named {name!r}.",
            feature=SLUG,
            expected=", ".join(SCHEMES),
            remedy=did_you_mean(name, SCHEMES),
        )


def num_blocks(rows: int, columns: int) -> tuple[int, int]:
    return -(-rows // BLOCK), -(-columns // BLOCK)


def quantise(values: Any, name: str) -> np.ndarray:
    """The bytes of the quantised matrix, then those of its scales, uint8 in one row.

    values: torch, floating [rows, columns], of which one block of rows at a time is copied. Raises
    PeriodicError where one is not finite: it would spoil its whole block.
    """
    import torch

    rows, columns = values.shape
    out = np.empty(rows * columns + 4 * int(np.prod(num_blocks(rows, columns))), np.uint8)
    matrix = torch.from_numpy(out[: rows * columns]).view(torch.float8_e4m3fn).view(rows, columns)
    scales = np.empty(num_blocks(rows, columns), np.float32)
    for number, first in enumerate(range(0, rows, BLOCK)):
        part = slice(first, first + BLOCK)
        block, found = _row_of_blocks(values[part].float(), name)
        matrix[part] = block
        scales[number] = found
    out[rows * columns :] = scales.reshape(-1).view(np.uint8)
    return out


def _row_of_blocks(values: Any, name: str) -> tuple[Any, np.ndarray]:
    """Up to `BLOCK` rows over their scales, E4M3, and the scales, one per block of columns."""
    import torch

    if not bool(values.isfinite().all()):
        raise PeriodicError(
            f"{name} holds values that are not finite.",
            feature=SLUG,
            remedy="Find out which step of training made them, or leave --quantize out.",
        )
    padded = torch.nn.functional.pad(values.abs(), (0, -values.shape[1] % BLOCK))
    largest = padded.unflatten(1, (-1, BLOCK)).amax((0, 2))
    scales = torch.where(largest > 0, largest / LARGEST, torch.ones_like(largest))
    spread = scales.repeat_interleave(BLOCK)[: values.shape[1]]
    return (values / spread).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn), scales.numpy()
