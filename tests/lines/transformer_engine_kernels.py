"""Transformer Engine's own Python on a CPU: only its compiled kernels are answered here, by torch.

Its wheel has no CUDA in it: quantizers, tensor classes and the cast of masters into quantised
weights are Python over `transformer_engine_torch`. What of that module tensors of FP8 weights need
is written below, in the arithmetic that its kernels document; a call of anything else raises.
FP8 data is uint8, scales are FP32, h x w a weight's shape.
"""

from __future__ import annotations

import enum
import importlib
import importlib.util
import os
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch

KERNELS = "transformer_engine_torch"
#: Largest finite value of each FP8 format, by Transformer Engine's number of it.
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


class DType(enum.IntEnum):
    """As the extension numbers them."""

    kByte = 0
    kInt32 = 2
    kFloat32 = 4
    kFloat16 = 5
    kBFloat16 = 6
    kFloat8E4M3 = 7
    kFloat8E5M2 = 8
    kFloat4E2M1 = 10


class FusedAttention(enum.IntEnum):
    """As the extension numbers them."""

    NVTE_No_Backend = -1
    NVTE_F16_arbitrary_seqlen = 1
    NVTE_FP8 = 2


FORMATS = {DType.kFloat8E4M3: torch.float8_e4m3fn, DType.kFloat8E5M2: torch.float8_e5m2}
_FORWARD = [f"GEMM{n}_{what}" for n in (1, 2, 3) for what in ("INPUT", "WEIGHT", "OUTPUT")]
_BACKWARD = [f"GRAD_{what}{n}" for n in (1, 2, 3) for what in ("OUTPUT", "INPUT")]


class Unwritten:
    """A name of the extension that importing Transformer Engine reads and FP8 weights do not."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{KERNELS}.{self._name} has no stand-in on the CPU")

    def __getattr__(self, name: str) -> Unwritten:
        if name.startswith("__"):
            raise AttributeError(name)
        return Unwritten(f"{self._name}.{name}")

    def __int__(self) -> int:
        """Of a member of an enumeration: a number of its own."""
        return zlib.crc32(self._name.encode())


class Kernels(ModuleType):
    """`transformer_engine_torch`, as far as it goes."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, Unwritten(name))
        return self.__dict__[name]


def import_transformer_engine(tree: Path) -> ModuleType:
    """Import Transformer Engine from its unpacked wheel, over these kernels.

    Its package would look for the CUDA library of another wheel, and load the extension itself.
    """
    sys.path.insert(0, str(tree))
    sys.modules[KERNELS] = _kernels()
    name = "transformer_engine.common"
    folder = tree / "transformer_engine" / "common"
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    common = sys.modules[name] = importlib.util.module_from_spec(spec)
    os.environ["NVTE_PROJECT_BUILDING"] = "1"
    spec.loader.exec_module(common)
    del os.environ["NVTE_PROJECT_BUILDING"]
    common.load_framework_extension = lambda framework: None
    made = _import_without_onnx()
    # The import statement does it only for a module that it has executed.
    sys.modules["transformer_engine"].common = common
    return made


def _import_without_onnx() -> ModuleType:
    """What exports to ONNX is declared when it is imported, and asks for packages of its own."""
    # It looks for packages by name, too.
    importlib.import_module("torch._dynamo")
    absent = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    sys.modules.update({name: mock.MagicMock(__spec__=None) for name in absent})
    try:
        return importlib.import_module("transformer_engine.pytorch")
    finally:
        for name in absent:
            del sys.modules[name]


def _kernels() -> ModuleType:
    made = Kernels(KERNELS)
    made.DType, made.NVTE_Fused_Attn_Backend = DType, FusedAttention
    made.FP8FwdTensors = enum.IntEnum("FP8FwdTensors", _FORWARD, start=0)
    made.FP8BwdTensors = enum.IntEnum("FP8BwdTensors", _BACKWARD, start=0)
    for kernel in (
        quantize,
        create_empty_quantized_tensor,
        compute_amax,
        multi_tensor_scale,
        multi_tensor_l2norm,
        multi_tensor_compute_scale_and_scale_inv,
        fp8_block_scaling_compute_partial_amax,
        fp8_block_scaling_partial_cast,
        fp8_transpose,
    ):
        setattr(made, kernel.__name__, kernel)
    made.multi_tensor_scale_tensor = multi_tensor_scale
    return made


def quantize(src: Any, quantizer: Any, dst: Any = None, noop: Any = None) -> Any:
    """A tensor as a quantizer says; into `dst`, or into a new one."""
    if dst is None:
        dst = create_empty_quantized_tensor(quantizer, src.shape, src.dtype, src.device)
    kind, values = type(quantizer).__name__, src.detach().float()
    if kind == "Float8Quantizer":
        if quantizer.amax.numel():
            quantizer.amax.copy_(torch.maximum(quantizer.amax, values.abs().max()))
        scale = quantizer.scale
    elif kind == "Float8CurrentScalingQuantizer":
        scale = _scale(
            values.abs().max().view(1),
            LARGEST[FORMATS[quantizer.dtype]],
            quantizer.force_pow_2_scales,
            quantizer.amax_epsilon,
        )
    elif kind == "Float8BlockQuantizer":
        return _quantize_blocks(values, quantizer, dst)
    else:
        raise NotImplementedError(f"{kind} has no stand-in on the CPU")
    dst._scale_inv.copy_(scale.reciprocal().view(dst._scale_inv.shape))
    _put(dst._data, values * scale, quantizer.dtype)
    return dst


def _quantize_blocks(values: Any, quantizer: Any, dst: Any) -> Any:
    h, w = values.shape
    amax = torch.zeros(quantizer.get_scale_shape((h, w), False))
    fp8_block_scaling_compute_partial_amax(values, amax, h, w, 0, quantizer.block_len)
    scale = _scale(
        amax,
        LARGEST[FORMATS[quantizer.dtype]],
        quantizer.force_pow_2_scales,
        quantizer.amax_epsilon,
    )
    dst._rowwise_scale_inv.copy_(scale.reciprocal())
    fp8_block_scaling_partial_cast(
        values, dst._rowwise_data.view(-1), scale, h, w, 0, quantizer.block_len, quantizer.dtype
    )
    if dst._columnwise_data is not None:
        dst._create_columnwise()
    return dst


def create_empty_quantized_tensor(
    quantizer: Any, shape: Sequence[int], dtype: Any, device: Any, pinned: bool = False
) -> Any:
    """Of the class that the quantizer makes."""
    from transformer_engine.pytorch import tensor

    data = torch.zeros(shape, dtype=torch.uint8, device=device)
    if type(quantizer).__name__ != "Float8BlockQuantizer":
        return tensor.Float8Tensor(
            shape=shape,
            dtype=dtype,
            data=data,
            fp8_scale_inv=torch.ones(1, device=device),
            fp8_dtype=quantizer.dtype,
            quantizer=quantizer,
            device=device,
        )
    scale_inv = torch.ones(quantizer.get_scale_shape(shape, False), device=device)
    return tensor.Float8BlockwiseQTensor(
        shape=shape,
        dtype=dtype,
        rowwise_data=data,
        rowwise_scale_inv=scale_inv,
        columnwise_data=None,
        columnwise_scale_inv=None,
        fp8_dtype=quantizer.dtype,
        quantizer=quantizer,
        is_2D_scaled=quantizer.block_scaling_dim == 2,
        device=device,
    )


def compute_amax(values: Any, amax: Any) -> None:
    """amax: one element."""
    amax.copy_(values.detach().float().abs().max())


def multi_tensor_scale(chunk: int, noop: Any, lists: Any, factor: Any) -> None:
    """The first list times a factor, a number or a tensor of one, into the second."""
    for source, target in zip(*lists, strict=True):
        target.copy_(source * factor)


def multi_tensor_l2norm(chunk: int, noop: Any, lists: Any, per_tensor: bool = False) -> Any:
    """The norm of all tensors together, and one element for each where it is asked for."""
    norms = torch.stack([tensor.detach().float().norm() for tensor in lists[0]])
    return norms.norm().view(1), norms if per_tensor else torch.empty(0)


def multi_tensor_compute_scale_and_scale_inv(
    chunk: int, noop: Any, lists: Any, largest: float, power_of_2: bool, epsilon: float
) -> None:
    """Scales and their reciprocals, of amaxes, shape by shape."""
    for amax, scale, scale_inv in zip(*lists, strict=True):
        scale.copy_(_scale(amax, largest, power_of_2, epsilon))
        scale_inv.copy_(scale.reciprocal())


def fp8_block_scaling_compute_partial_amax(
    values: Any, amax: Any, h: int, w: int, start: int, block: int
) -> None:
    """The largest of each block among elements `start` and following of a flat h x w weight."""
    part = values.detach().float().abs().reshape(-1)
    amax.view(-1).scatter_reduce_(
        0, _blocks(part.numel(), w, start, block, amax.shape[1]), part, "amax"
    )


def fp8_block_scaling_partial_cast(
    values: Any, out: Any, scale: Any, h: int, w: int, start: int, block: int, dtype: Any
) -> None:
    """Those elements as FP8, each with its block's scale."""
    part = values.detach().float().reshape(-1)
    own = scale.reshape(-1)[_blocks(part.numel(), w, start, block, scale.shape[1])]
    _put(out, part * own, dtype)


def fp8_transpose(data: Any, dtype: Any, *, out: Any = None) -> Any:
    """Of the last dimension with all before."""
    turned = data.reshape(-1, data.shape[-1]).t().contiguous()
    if out is None:
        return turned.view(data.shape[-1], *data.shape[:-1])
    out.copy_(turned.view(out.shape))
    return out


def _blocks(length: int, w: int, start: int, block: int, blocks_per_row: int) -> Any:
    place = torch.arange(start, start + length)
    return place // w // block * blocks_per_row + place % w // block


def _scale(amax: Any, largest: float, power_of_2: bool, epsilon: float) -> Any:
    """FP32; 1 where there is nothing to scale."""
    amax = amax.clamp(min=epsilon)
    scale = torch.where((amax == 0) | ~amax.isfinite(), torch.ones_like(amax), largest / amax)
    scale = scale.clamp(max=torch.finfo(torch.float32).max)
    if power_of_2:
        scale = (scale.view(torch.int32) & -0x800000).view(torch.float32)
    return scale


def _put(data: Any, values: Any, dtype: Any) -> None:
    """Saturating, into uint8 of the same number of elements."""
    kind = FORMATS[dtype]
    cast = values.clamp(-LARGEST[kind], LARGEST[kind]).to(kind)
    data.copy_(cast.view(torch.uint8).view(data.shape))
