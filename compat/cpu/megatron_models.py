"""Tiny models of Megatron-core and what trains them, the same on every tree.

Every tree is called by what all of them have: the local layer spec, DDP, the distributed optimizer
and torch_dist checkpoints; with `fp8` among the configuration's fields, which needs a GPU, by
Transformer Engine's layer spec. Shape legend: B samples, S positions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from miles_periodic.compat.cpu.quantised_models import quantise_weights

VOCABULARY = 64
LENGTH = 16
BATCH = 2
HIDDEN = 32
NUM_LAYERS = 2
NUM_EXPERTS = 4
TOP_K = 2
PARALLEL_SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "expert_model_parallel_size",
)


@dataclass(frozen=True)
class Trainer:
    """What a trainer holds: the model in DDP, its optimizer, and what its routers replay from."""

    model: Any
    optimizer: Any
    replays: tuple[Any, ...] = ()

    @property
    def parts(self) -> list[Any]:
        """The optimizers inside: one for the dense parameters, one for the experts if any."""
        return list(getattr(self.optimizer, "chained_optimizers", [self.optimizer]))


def trainer(
    *,
    moe: bool = False,
    seed: int = 7,
    optimizer: Any = None,
    ddp: Any = None,
    fp8_recipe: str = "",
    **config: Any,
) -> Trainer:
    """A tiny GPT, dense or with experts in every layer, in bf16 with FP32 masters.

    fp8_recipe: of `quantised_models.RECIPES`, for FP8 weights of its linear layers; where `config`
    has `fp8`, its value in Megatron, they also compute in FP8. optimizer, ddp, config: what
    differs from the default in Megatron's OptimizerConfig, DistributedDataParallelConfig and
    TransformerConfig; parallel sizes are part of the last.
    Trainers of one parallel shape may live side by side.
    """
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer.module import Float16Module

    num_before = len(_replays())
    if fp8_recipe and "fp8" in config:
        config |= {"fp8_recipe": fp8_recipe, "fp8_param": True}
    config, model = gpt(moe=moe, seed=seed, **config)
    replays = tuple(_replays()[num_before:])
    if config.bf16:
        model = Float16Module(config, model)
    ddp_fields = {"use_distributed_optimizer": True, "grad_reduce_in_fp32": True, **(ddp or {})}
    quantised = {}
    if fp8_recipe:
        if not config.fp8:
            quantise_weights(model, fp8_recipe)
        ddp_fields |= {"fp8_param_gather": True}
        quantised = {"fp8_recipe": fp8_recipe}
    model = DistributedDataParallel(config, DistributedDataParallelConfig(**ddp_fields), model)
    if not fp8_recipe:
        # Ranks have the same weights by their seed, and quantised ones cannot be sent by torch.
        model.broadcast_params()
    fields = {
        **quantised,
        "optimizer": "adam",
        "lr": 1e-2,
        "bf16": config.bf16,
        "params_dtype": config.params_dtype,
        "clip_grad": 1.0,
        "use_distributed_optimizer": True,
        **(optimizer or {}),
    }
    return Trainer(model, get_megatron_optimizer(OptimizerConfig(**fields), [model]), replays)


def gpt(*, moe: bool = False, seed: int = 7, **fields: Any) -> tuple[Any, Any]:
    """The configuration and a GPTModel, its weights those of `seed`."""
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(**{**_dense(), **(_experts() if moe else {}), **fields})
    parallel_state(config, seed)
    model = GPTModel(
        config=config,
        transformer_layer_spec=_layers(config),
        vocab_size=VOCABULARY,
        max_sequence_length=LENGTH,
    )
    return config, model


def _layers(config: Any) -> Any:
    from megatron.core.models.gpt import gpt_layer_specs as specs

    if config.fp8:
        return specs.get_gpt_layer_with_transformer_engine_spec(
            num_experts=config.num_moe_experts, moe_grouped_gemm=config.moe_grouped_gemm
        )
    return specs.get_gpt_layer_local_spec(num_experts=config.num_moe_experts)


def _dense() -> dict[str, Any]:
    """Without any fusion that needs a kernel."""
    return {
        "num_layers": NUM_LAYERS,
        "hidden_size": HIDDEN,
        "num_attention_heads": 4,
        "use_cpu_initialization": True,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "bf16": True,
        "params_dtype": torch.bfloat16,
        "pipeline_dtype": torch.bfloat16,
        "gradient_accumulation_fusion": False,
        "bias_dropout_fusion": False,
        "bias_activation_fusion": False,
        "masked_softmax_fusion": False,
    }


def _experts() -> dict[str, Any]:
    return {
        "num_moe_experts": NUM_EXPERTS,
        "moe_router_topk": TOP_K,
        "moe_ffn_hidden_size": 2 * HIDDEN,
        "moe_token_dispatcher_type": "alltoall",
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": 0.0,
        "moe_enable_routing_replay": True,
        "add_bias_linear": False,
    }


def parallel_state(config: Any, seed: int) -> None:
    """Megatron's parallel state and random state for a configuration, whatever was before.

    The process groups stay as they are where the sizes do.
    """
    from megatron.core import parallel_state as state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    sizes = {size: getattr(config, size) for size in PARALLEL_SIZES}
    if state.model_parallel_is_initialized() and sizes != _parallel_sizes():
        state.destroy_model_parallel()
    if not state.model_parallel_is_initialized():
        state.initialize_model_parallel(**sizes)
    model_parallel_cuda_manual_seed(seed)
    torch.manual_seed(seed)


def _parallel_sizes() -> dict[str, int]:
    from megatron.core import parallel_state as state

    return {
        size: getattr(state, f"get_{size.removesuffix('_size')}_world_size")()
        for size in PARALLEL_SIZES
    }


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens int64 (B, S), positions int64 (B, S), mask bool (B, 1, S, S); True is masked."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=generator)
    positions = torch.arange(LENGTH).unsqueeze(0).expand(BATCH, -1)
    mask = torch.ones(BATCH, 1, LENGTH, LENGTH).tril() < 0.5
    return tokens, positions, mask


def train(trained: Trainer, steps: range, *, rank: int = 0, routes: Any = None) -> list[float]:
    """One optimizer step on one batch for each number of `steps`; the losses.

    rank: makes data-parallel ranks see other batches. routes: called with the step's number for
    what is to be replayed in it (see `replayed`), or None.
    """
    return [_step(trained, number, rank, routes) for number in steps]


def _step(trained: Trainer, number: int, rank: int, routes: Any) -> float:
    device = next(trained.model.parameters()).device
    tokens, positions, mask = (each.to(device) for each in batch(1000 * rank + number))
    trained.model.zero_grad_buffer()
    trained.optimizer.zero_grad()
    replay = replayed(trained.replays, routes(number)) if routes else contextlib.nullcontext()
    with replay:
        loss = trained.model(tokens, positions, mask, labels=tokens).float().mean()
        loss.backward()
    trained.model.finish_grad_sync()
    stepped, _, _ = trained.optimizer.step()
    if not stepped:
        raise RuntimeError(f"Megatron skipped step {number}")
    return loss.item()


def routes_of_step(number: int) -> list[torch.Tensor]:
    """Routes int64 (B*S, TOP_K) of each layer that no router would choose by itself."""
    generator = torch.Generator().manual_seed(5000 + number)
    scores = torch.rand(NUM_LAYERS, BATCH * LENGTH, NUM_EXPERTS, generator=generator)
    return list(scores.argsort(dim=-1)[..., :TOP_K])


def _replays() -> list[Any]:
    """Where every router that was built for replay stands: Megatron's list or Miles's."""
    from megatron.core.transformer.moe.router_replay import RouterReplay

    manager = _manager_of_miles()
    return RouterReplay.global_router_replay_instances if manager is None else manager.replays


def _manager_of_miles() -> Any:
    """The manager that the routers of the Megatron in the miles-rl wheel ask, else None."""
    from megatron.core.transformer.moe import router

    if hasattr(router, "RouterReplay"):
        return None
    from miles.utils.replay_base import routing_replay_manager

    # Whether to build routers that can replay, and whether to compare with their own choice.
    routing_replay_manager.enabled = True
    routing_replay_manager.enable_check_replay_result = False
    return routing_replay_manager


@contextlib.contextmanager
def replayed(replays: Sequence[Any], routes: Sequence[torch.Tensor]) -> Iterator[None]:
    """Inside it, one forward pass of a model takes these routes.

    replays: the model's, one for each layer. routes: int64 (B*S, TOP_K) for each layer.
    """
    manager = _manager_of_miles()
    with _from_miles(manager, replays, routes) if manager else _from_megatron(replays, routes):
        yield


@contextlib.contextmanager
def _from_megatron(replays: Sequence[Any], routes: Sequence[torch.Tensor]) -> Iterator[None]:
    from megatron.core.transformer.moe.router_replay import RouterReplayAction

    for replay, layer in zip(replays, routes, strict=True):
        replay.set_target_indices(layer.clone())
        replay.set_router_replay_action(RouterReplayAction.REPLAY_FORWARD)
    try:
        yield
    finally:
        for replay in replays:
            replay.clear_indices()
            replay.clear_router_replay_action()


@contextlib.contextmanager
def _from_miles(
    manager: Any, replays: Sequence[Any], routes: Sequence[torch.Tensor]
) -> Iterator[None]:
    for replay, layer in zip(replays, routes, strict=True):
        replay.clear()
        replay.top_indices_list = [layer.clone()]
    manager.stage = "replay_forward"
    try:
        yield
    finally:
        for replay in replays:
            replay.clear()
        manager.stage = "fallthrough"
