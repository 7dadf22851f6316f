"""FP8 primary weights in a model of Megatron's local spec, by Transformer Engine's own quantizers.

With Transformer Engine's spec its modules do the same to themselves when they are built.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch

#: As Megatron names them in `fp8_recipe`.
RECIPES = ("delayed", "tensorwise", "blockwise")
LARGEST = 448.0


def quantise_weights(model: Any, recipe: str) -> None:
    """Make the weights of all linear layers FP8, but for the output layer's.

    Their initial values are kept for the masters, as with `preserve_high_precision_init_val`.
    """
    for name, module in model.named_modules():
        if type(module).__name__.endswith("ParallelLinear") and "output_layer" not in name:
            module.weight = _quantised(module.weight, recipe)


def quantised_weights(model: Any) -> list[Any]:
    """The weights of a model that are quantised."""
    from transformer_engine.pytorch.tensor import QuantizedTensor

    return [weight for weight in model.parameters() if isinstance(weight, QuantizedTensor)]


def raw(weight: Any) -> list[torch.Tensor]:
    """All that a quantised weight consists of: bytes, scales, and what delayed scaling remembers.

    Without the scales of transposed blocks: some are padding that nobody sets.
    """
    parts = [
        getattr(weight, name, None)
        for name in (
            "_data",
            "_transpose",
            "_scale_inv",
            "_rowwise_data",
            "_rowwise_scale_inv",
            "_columnwise_data",
        )
    ]
    quantizer = weight._quantizer
    parts += [getattr(quantizer, name, None) for name in ("scale", "amax")]
    return [part for part in parts if isinstance(part, torch.Tensor)]


def next_scales(model: Any) -> None:
    """Delayed scaling: the next step's scale is made of this step's largest element."""
    for weight in quantised_weights(model):
        quantizer = weight._quantizer
        if hasattr(quantizer, "scale"):
            quantizer.scale.copy_(LARGEST / quantizer.amax.clamp(min=1e-12))
            quantizer.amax.zero_()


def _quantised(weight: Any, recipe: str) -> torch.nn.Parameter:
    kept, value = dict(vars(weight)), weight.detach()
    made = torch.nn.Parameter(_quantizer(recipe, value)(value))
    vars(made).update(kept)
    made._high_precision_init_val = value.cpu().clone()
    made.get_high_precision_init_val = MethodType(_initial, made)
    made.clear_high_precision_init_val = MethodType(_forget_initial, made)
    return made


def _quantizer(recipe: str, value: torch.Tensor) -> Any:
    from transformer_engine.pytorch import tensor
    from transformer_engine_torch import DType

    e4m3, device = DType.kFloat8E4M3, value.device
    if recipe == "delayed":
        scale = (LARGEST / value.float().abs().max()).view(1)
        amax = torch.zeros(1, device=device)
        return tensor.Float8Quantizer(scale, amax, e4m3, columnwise=False)
    if recipe == "tensorwise":
        return tensor.Float8CurrentScalingQuantizer(e4m3, device, columnwise=False)
    if recipe == "blockwise":
        return tensor.Float8BlockQuantizer(
            e4m3, rowwise=True, columnwise=False, block_scaling_dim=2
        )
    raise ValueError(f"{recipe!r} is none of {', '.join(RECIPES)}")


def _initial(weight: Any) -> Any:
    return getattr(weight, "_high_precision_init_val", None)


def _forget_initial(weight: Any) -> None:
    if hasattr(weight, "_high_precision_init_val"):
        del weight._high_precision_init_val
