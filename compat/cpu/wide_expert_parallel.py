"""What a stock SGLang server needs on a CPU for DP attention with expert parallelism.

SGLANG_CPU_OMP_THREADS_BIND must name a core per rank: "0|1" for two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from miles_periodic.compat.cpu import stock_sglang
from miles_periodic.compat.cpu.stand_in import StandIn, owner_of, replace

#: Variables for two ranks on one machine.
TWO_RANKS = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
_FILL = "get_cpu_graph_seq_len_fill_value"


def _scattered(native: Callable[..., Any]) -> Callable[..., Any]:
    def reduce_scatterv(group: Any, input_: Any, output: Any = None, sizes: Any = None) -> Any:
        import torch.distributed as dist

        sizes = sizes or [len(input_) // group.world_size] * group.world_size
        total = input_.clone()
        dist.all_reduce(total, group=group.device_group)
        mine = total.narrow(0, sum(sizes[: group.rank_in_group]), sizes[group.rank_in_group])
        return mine.contiguous() if output is None else output.copy_(mine)

    return reduce_scatterv


def _gathered(native: Callable[..., Any]) -> Callable[..., Any]:
    def all_gatherv(group: Any, input_: Any, sizes: Any = None, output: Any = None) -> Any:
        if isinstance(input_, list):
            return [_gather(group, tensor, sizes) for tensor in input_]
        whole = _gather(group, input_, sizes)
        return whole if output is None else output.copy_(whole)

    return all_gatherv


def _gather(group: Any, tensor: Any, sizes: Sequence[int] | None) -> Any:
    """The ranks' tensors behind each other; gloo gathers equal sizes, so that each is padded."""
    import torch
    import torch.distributed as dist

    sizes = sizes or [len(tensor)] * group.world_size
    padded = tensor.new_zeros((max(sizes), *tensor.shape[1:]))
    padded[: len(tensor)] = tensor
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded, group=group.device_group)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def collect_with_gloo(parallel_state: ModuleType) -> None:
    """Gather and scatter rows of uneven ranks without NCCL.

    Symptom: "pynccl is required for reduce_scatterv". Trigger: DP attention pads the ranks' tokens
    unevenly, sglang/srt/distributed/parallel_state.py. Safe: the same sums and rows, by gloo.
    """
    replace(parallel_state, "GroupCoordinator.reduce_scatterv", _scattered)
    replace(parallel_state, "GroupCoordinator.all_gatherv", _gathered)


def _skipping_absent(native: Callable[..., Any]) -> Callable[..., Any]:
    def moe_forward_native(layer: Any, x: Any, topk_output: Any, config: Any) -> Any:
        weights, experts, *_ = topk_output
        if len(x) and not bool((experts < 0).any()):
            return native(layer, x, topk_output, config)
        return _of_present_experts(layer, x, weights, experts)

    return moe_forward_native


def _of_present_experts(layer: Any, x: Any, weights: Any, experts: Any) -> Any:
    """(tokens, hidden) of the experts of this rank; -1 stands for one of another rank."""
    import torch
    import torch.nn.functional as functional

    out = torch.zeros(x.shape, dtype=torch.float32)
    for expert in range(len(layer.w13_weight)):
        token, place = (experts == expert).nonzero(as_tuple=True)
        if len(token):
            gate, up = functional.linear(x[token], layer.w13_weight[expert]).chunk(2, dim=-1)
            found = functional.linear(functional.silu(gate) * up, layer.w2_weight[expert])
            out.index_add_(0, token, found.float() * weights[token, place, None])
    return out.to(x.dtype)


def skip_experts_of_other_ranks(fused_moe: ModuleType) -> None:
    """Compute the experts of this rank only.

    Symptom: "index -1 is out of bounds". Trigger: expert parallelism marks experts of other ranks
    by -1, which the CUDA kernels skip and sglang/srt/layers/moe/fused_moe_native.py does not.
    Safe: their part of the sum is added by the rank that has them.
    """
    replace(fused_moe, "moe_forward_native", _skipping_absent)


def fill_idle_lengths(backend: ModuleType) -> None:
    """Name the length that stands for an idle request.

    Symptom: no attribute `get_cpu_graph_seq_len_fill_value`. Trigger: a rank without requests
    joins the forward of the others with padding. Safe: it is the value of the AMX backend; rows of
    padding are thrown away.
    """
    owner, _ = owner_of(backend, "TorchNativeAttnBackend.init_forward_metadata")
    if not hasattr(owner, _FILL):
        setattr(owner, _FILL, lambda self: 1)


STAND_INS = (
    *stock_sglang.STAND_INS,
    StandIn(
        name="wide-expert-parallel/collectives",
        module="sglang.srt.distributed.parallel_state",
        apply=collect_with_gloo,
        why="Uneven gathers of DP attention are made by NCCL only.",
    ),
    StandIn(
        name="wide-expert-parallel/experts",
        module="sglang.srt.layers.moe.fused_moe_native",
        apply=skip_experts_of_other_ranks,
        why="The native experts of a CPU know none of other ranks.",
    ),
    StandIn(
        name="wide-expert-parallel/idle",
        module="sglang.srt.layers.attention.torch_native_backend",
        apply=fill_idle_lengths,
        why="The native attention of a CPU lacks a method that idle ranks call.",
    ),
)
