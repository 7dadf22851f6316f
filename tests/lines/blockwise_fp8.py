"""Stand-ins with which an SGLang server on the CPU computes with matrices in blocks of FP8.

SGLang's own CPU path wants kernels for AMX that no wheel of it brings. Its loader is untouched: it
reads the config, names, shapes and scales. Then a matrix is multiplied out with its scales, once,
and used as a plain one is.
"""

from types import ModuleType

import torch
from torch.nn import Parameter
from torch.nn.functional import linear

from miles_periodic.compat.cpu import stock_sglang
from miles_periodic.compat.cpu.stand_in import StandIn, replace


def multiplied_out(weight, scales, block):
    """FP8 [..., R, C] and FP32 [..., R / block, C / block] as BF16 [..., R, C]."""
    rows, columns = weight.shape[-2:]
    spread = scales.repeat_interleave(block[0], -2).repeat_interleave(block[1], -1)
    return (weight.float() * spread[..., :rows, :columns]).bfloat16()


def compute_plainly(module: ModuleType) -> None:
    def process(names):
        def processed(self, layer):
            for name in names:
                scales = getattr(layer, f"{name}_scale_inv")
                if getattr(layer, name).dtype != torch.float8_e4m3fn or (scales <= 0).any():
                    raise ValueError(f"{name} of {layer} was not loaded with its scales")
                plain = multiplied_out(getattr(layer, name).data, scales, self.weight_block_size)
                setattr(layer, name, Parameter(plain, requires_grad=False))

        return lambda _: processed

    def linear_apply(self, layer, x, bias=None):
        return linear(x, layer.weight, bias)

    def experts_apply(self, layer, dispatch_output):
        from sglang.srt.layers.moe.fused_moe_native import moe_forward_native
        from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput

        x, topk_output = dispatch_output.hidden_states, dispatch_output.topk_output
        output = moe_forward_native(layer, x, topk_output, self.moe_runner_config)
        return StandardCombineInput(hidden_states=output)

    after_loading = "process_weights_after_loading_block_quant"
    replace(module, f"Fp8LinearMethod.{after_loading}", process(["weight"]))
    replace(module, "Fp8LinearMethod.apply", lambda _: linear_apply)
    replace(module, f"Fp8MoEMethod.{after_loading}", process(["w13_weight", "w2_weight"]))
    replace(module, "Fp8MoEMethod.apply", lambda _: experts_apply)


STAND_INS = (
    *stock_sglang.STAND_INS,
    StandIn(
        name="blockwise-fp8/plain-arithmetic",
        module="sglang.srt.layers.quantization.fp8",
        apply=compute_plainly,
        why="Its kernels for FP8 on a CPU are in no wheel.",
    ),
)
