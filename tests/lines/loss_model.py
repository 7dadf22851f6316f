"""A GPTModel of one layer whose losses are looked at, what it is given, and how it is watched."""

from __future__ import annotations

from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode

NUM_SEQUENCES, NUM_POSITIONS, VOCABULARY, HIDDEN = 2, 32, 1024, 32


def norms_of_torch():
    """Megatron's torch norm refuses sequence parallelism, where its own needs Apex or TE."""
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    def norm(cls, config, hidden_size, eps=1e-5, **others):
        return torch.nn.LayerNorm(hidden_size, eps)

    WrappedTorchNorm.__new__ = norm


@contextmanager
def parallel(**sizes):
    from megatron.core import parallel_state, tensor_parallel

    parallel_state.initialize_model_parallel(**sizes)
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    try:
        yield
    finally:
        parallel_state.destroy_model_parallel()


def build(tensor_size=1, sequence=False, tied=False, dtype=torch.float32, **stages):
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.module import Float16Module
    from megatron.core.transformer.transformer_config import TransformerConfig

    torch.manual_seed(3)
    pipeline_size = 2 if stages else 1
    config = TransformerConfig(
        num_layers=pipeline_size,
        hidden_size=HIDDEN,
        num_attention_heads=2,
        use_cpu_initialization=True,
        tensor_model_parallel_size=tensor_size,
        pipeline_model_parallel_size=pipeline_size,
        sequence_parallel=sequence,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        init_method_std=0.2,
        gradient_accumulation_fusion=False,
    )
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(),
        vocab_size=VOCABULARY,
        max_sequence_length=NUM_POSITIONS,
        parallel_output=True,
        share_embeddings_and_output_weights=tied,
        **stages,
    )
    return Float16Module(config, model) if dtype == torch.bfloat16 else model


def inputs():
    generator = torch.Generator().manual_seed(7)
    shape = (NUM_SEQUENCES, NUM_POSITIONS)
    tokens = torch.randint(VOCABULARY, shape, generator=generator)
    labels = torch.randint(VOCABULARY, shape, generator=generator)
    weights = torch.rand(shape, generator=generator) * (
        torch.rand(shape, generator=generator) > 0.4
    )
    mask = torch.ones(1, 1, NUM_POSITIONS, NUM_POSITIONS, dtype=torch.bool).triu(1)
    positions = torch.arange(NUM_POSITIONS).expand(shape)
    return tokens, labels, weights, mask, positions


@contextmanager
def native():
    from megatron.core.models.gpt.gpt_model import GPTModel

    bound = vars(GPTModel)["_postprocess"]
    GPTModel._postprocess = bound.__wrapped__
    try:
        yield
    finally:
        GPTModel._postprocess = bound


class Largest(TorchDispatchMode):
    """The most elements that any one result had, and its shape."""

    def __init__(self):
        super().__init__()
        self.numel, self.shape = 0, ()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.numel() > self.numel:
                self.numel, self.shape = tensor.numel(), tuple(tensor.shape)
        return result
