"""One rank of a real Megatron on the CPU: checkpoints of several models in several layouts.

See compat/cpu/megatron_alone.py, which runs it. Two ranks write them, then one loads each and
leaves the logits that Megatron computes. Shape legend: B samples, S positions, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from miles_periodic.compat.cpu.megatron_alone import Rank
from miles_periodic.compat.cpu.megatron_models import parallel_state

VOCABULARY, PADDED, LENGTH, HIDDEN = 100, 128, 12, 32
SEED = 11

COMMON = {
    "num_layers": 2,
    "hidden_size": HIDDEN,
    "num_attention_heads": 4,
    "kv_channels": 8,
    "ffn_hidden_size": 48,
    "normalization": "RMSNorm",
    "layernorm_epsilon": 1e-6,
    "gated_linear_unit": True,
    "activation_func": torch.nn.functional.silu,
    "add_bias_linear": False,
    "use_cpu_initialization": True,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "pipeline_dtype": torch.float32,
    "gradient_accumulation_fusion": False,
    "bias_dropout_fusion": False,
    "bias_activation_fusion": False,
    "masked_softmax_fusion": False,
}
GROUPED = {"num_query_groups": 2}
EXPERTS = {
    "num_moe_experts": 4,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 24,
    "moe_router_load_balancing_type": "none",
    "moe_aux_loss_coeff": 0.0,
    "moe_token_dispatcher_type": "allgather",
}
LATENT = {
    "multi_latent_attention": True,
    "qk_layernorm": True,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_head_dim": 8,
    "qk_pos_emb_head_dim": 4,
    "v_head_dim": 8,
    "rope_type": "rope",
    "apply_rope_fusion": False,
}
SHARED = {
    "moe_layer_freq": [0, 1],
    "moe_shared_expert_intermediate_size": 24,
    "moe_router_score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "moe_router_topk_scaling_factor": 1.5,
}
MODELS = {
    "llama": {**COMMON, **GROUPED},
    "tied": {**COMMON, **GROUPED},
    "qwen2": {**COMMON, **GROUPED, "add_qkv_bias": True},
    "qwen3-moe": {**COMMON, **GROUPED, **EXPERTS, "qk_layernorm": True},
    "deepseek-v3": {**COMMON, **EXPERTS, **LATENT, **SHARED},
}
TENSOR, PIPELINE, EXPERT = (
    {f"{kind}_model_parallel_size": 2} for kind in ("tensor", "pipeline", "expert")
)
#: Name of a checkpoint to its model and how the two ranks shared it.
CHECKPOINTS = {
    "llama-tensor": ("llama", TENSOR, {}),
    "llama-pipeline": ("llama", PIPELINE, {}),
    "tied-tensor": ("tied", TENSOR, {}),
    "tied-pipeline": ("tied", PIPELINE, {}),
    "qwen2-tensor": ("qwen2", TENSOR, {}),
    "qwen3-moe-expert": ("qwen3-moe", EXPERT, {}),
    "qwen3-moe-layers-apart": ("qwen3-moe", EXPERT, {"non_homogeneous_layers": True}),
    "qwen3-moe-keys-apart": ("qwen3-moe", EXPERT, {"singleton_local_shards": True}),
    "qwen3-moe-expert-tensor": ("qwen3-moe", {**TENSOR, "expert_tensor_parallel_size": 2}, {}),
    "deepseek-v3-expert": ("deepseek-v3", EXPERT, {}),
    "deepseek-v3-pipeline": ("deepseek-v3", PIPELINE, {}),
}


def facts(rank: Rank) -> dict:
    """folder: where the world's files are."""
    from megatron.core import dist_checkpointing

    for name, (model, layout, metadata) in CHECKPOINTS.items():
        if rank.world_size == 1:
            load_and_run(name, rank)
            continue
        folder = rank.folder / name
        if rank.rank == 0:
            folder.mkdir()
        dist.barrier()
        state = build(model, layout).sharded_state_dict(metadata=metadata or None)
        dist_checkpointing.save(state, str(folder))
    return {"folder": str(rank.folder)}


def load_and_run(name: str, rank: Rank) -> None:
    """Leave `NAME.pt`: logits float32 [B, S, V] of `tokens()`."""
    from megatron.core import dist_checkpointing

    model, _, metadata = CHECKPOINTS[name]
    built = build(model, {})
    written = rank.folder.parents[1] / "2" / "shared" / name
    wanted = built.sharded_state_dict(metadata=metadata or None)
    built.load_state_dict(dist_checkpointing.load(wanted, str(written)))
    positions = torch.arange(LENGTH).unsqueeze(0).expand(2, -1)
    mask = torch.ones(2, 1, LENGTH, LENGTH).tril() < 0.5
    with torch.no_grad():
        logits = built.eval()(tokens(), positions, mask)
    torch.save(logits[..., :VOCABULARY].clone(), rank.folder / f"{name}.pt")


def tokens() -> torch.Tensor:
    """int64 [B, S]."""
    return torch.arange(2 * LENGTH).view(2, LENGTH) * 7 % VOCABULARY


def build(name: str, layout: dict):
    """The model with random weights; norms and biases are random, too."""
    from megatron.core import parallel_state as state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import (
        MLATransformerConfig,
        TransformerConfig,
    )

    fields = {**MODELS[name], **layout}
    kind = MLATransformerConfig if "multi_latent_attention" in fields else TransformerConfig
    config = kind(**fields)
    parallel_state(config, SEED)
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm")
    if name == "deepseek-v3":
        for layer in spec.layer_specs:
            layer.submodules.self_attention.submodules.core_attention = _core_attention()
    model = GPTModel(
        config=config,
        transformer_layer_spec=spec,
        vocab_size=PADDED,
        max_sequence_length=LENGTH,
        pre_process=state.is_pipeline_first_stage(),
        post_process=state.is_pipeline_last_stage(),
        parallel_output=False,
        share_embeddings_and_output_weights=name == "tied",
        position_embedding_type="rope",
    )
    _randomise(model)
    return model


def _core_attention() -> type:
    """Attention without a kernel, for heads whose values have another size than their keys.

    Megatron's own asks for no sizes but the config's; the scale it is given is right. Without
    Transformer Engine, 0.16 asks whether a layer is an instance of what is no class.
    """
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    if not isinstance(multi_latent_attention.TELinear, type):
        multi_latent_attention.TELinear = type("TELinear", (), {})

    class CoreAttention(DotProductAttention):
        def __init__(self, *arguments, k_channels=None, v_channels=None, **named):
            super().__init__(*arguments, **named)

    return CoreAttention


def _randomise(model) -> None:
    """Give what starts as ones or zeros values of its own, the same on ranks that share it."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if "norm" in name or name.endswith(("bias", "expert_bias")):
            generator = torch.Generator().manual_seed(sum(name.encode()))
            values = torch.rand(tensor.shape, generator=generator)
            tensor.data.copy_(values + 0.5 if "norm" in name else values / 10)
