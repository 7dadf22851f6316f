"""A random Qwen3-MoE checkpoint and its tokenizer, the same bytes every time.

The router's weights are drawn wider than the others: with a spread of 0.02 the second and third
expert of a token lie within the rounding of bfloat16, and a check of replayed routes would compare
noise.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

END_OF_TEXT = "<|endoftext|>"
TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    f"{TURN_START}{{{{ message.role }}}}\n{{{{ message.content }}}}{TURN_END}\n"
    "{% endfor %}"
    f"{TURN_START}assistant\n"
)
CORPUS = (
    "A rehearsal is a run that costs nothing: the same programs, the same order, a small model.",
    "Use the calculator. What is 17 plus 25? The calculator says 42.",
    "What is 96 minus 58? What is 12 times 11? The calculator says 38, then 132.",
    "Routes of a token name the experts that saw it; the trainer replays them layer by layer.",
    "Weights change in place while requests wait; old prefixes stay, new prompts begin afresh.",
    "0 1 2 3 4 5 6 7 8 9 10 20 30 40 50 60 70 80 90 100",
)


@dataclass(frozen=True)
class TinyModel:
    """The shape of the model, in Hugging Face's words; the defaults are what a CPU run uses."""

    vocab_size: int = 512
    hidden_size: int = 64
    intermediate_size: int = 128
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    num_experts: int = 8
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 32
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 4096


WEIGHT_SPREAD = 0.05
ROUTER_SPREAD = 0.5


def write(folder: Path, model: TinyModel = TinyModel(), seed: int = 0) -> None:
    """Write `config.json`, `model.safetensors` (bfloat16) and the tokenizer into `folder`."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", config(model))
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: _draw(name, shape, generator) for name, shape in tensor_shapes(model)}
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    write_tokenizer(folder, model.vocab_size)


def config(model: TinyModel) -> dict[str, Any]:
    """The contents of `config.json`."""
    return {
        **asdict(model),
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "decoder_sparse_step": 1,
        "eos_token_id": 0,
        "hidden_act": "silu",
        "initializer_range": WEIGHT_SPREAD,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "router_aux_loss_coef": 0.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_sliding_window": False,
    }


def tensor_shapes(model: TinyModel) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor of the checkpoint, in the order in which they are drawn."""
    hidden = model.hidden_size
    yield "model.embed_tokens.weight", (model.vocab_size, hidden)
    for layer in range(model.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        yield from ((prefix + name, shape) for name, shape in _layer_shapes(model))
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (model.vocab_size, hidden)


def _layer_shapes(model: TinyModel) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, width = model.hidden_size, model.moe_intermediate_size
    queries = model.num_attention_heads * model.head_dim
    keys = model.num_key_value_heads * model.head_dim
    yield "input_layernorm.weight", (hidden,)
    yield "self_attn.q_proj.weight", (queries, hidden)
    yield "self_attn.k_proj.weight", (keys, hidden)
    yield "self_attn.v_proj.weight", (keys, hidden)
    yield "self_attn.o_proj.weight", (hidden, queries)
    yield "self_attn.q_norm.weight", (model.head_dim,)
    yield "self_attn.k_norm.weight", (model.head_dim,)
    yield "post_attention_layernorm.weight", (hidden,)
    yield "mlp.gate.weight", (model.num_experts, hidden)
    for expert in range(model.num_experts):
        yield f"mlp.experts.{expert}.gate_proj.weight", (width, hidden)
        yield f"mlp.experts.{expert}.up_proj.weight", (width, hidden)
        yield f"mlp.experts.{expert}.down_proj.weight", (hidden, width)


def _draw(name: str, shape: tuple[int, ...], generator: Any) -> Any:
    import torch

    if name.endswith("norm.weight"):
        return torch.ones(shape, dtype=torch.bfloat16)
    spread = ROUTER_SPREAD if name.endswith("mlp.gate.weight") else WEIGHT_SPREAD
    return (torch.randn(shape, generator=generator) * spread).to(torch.bfloat16)


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Train a byte-level BPE tokenizer on CORPUS and write its two files.

    It knows every byte, so any text has tokens; it may have fewer than `vocab_size`.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", tokenizer_config())


def tokenizer_config() -> dict[str, Any]:
    """The contents of `tokenizer_config.json`."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "model_max_length": TinyModel.max_position_embeddings,
    }


def _write_json(path: Path, contents: dict[str, Any]) -> None:
    path.write_text(json.dumps(contents, indent=1, sort_keys=True) + "\n", encoding="utf-8")
