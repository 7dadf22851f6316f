"""What Megatron's checkpoint holds of a model in Hugging Face's form, by plain torch arithmetic.

It knows nothing of the families' tables: it is what they are held against. Shape legend: V
vocabulary, H hidden, I inner, E experts, L layers, G groups of heads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from miles_periodic.cli.bench.torch_dist_writer import TorchDistWriter

PADDING_ROWS = 28


def write_source(folder: Path, state: Mapping, groups: int, how: str = "stacked", parts: int = 2):
    """A checkpoint of a model's `state` whose tensors are cut into `parts` where ranks would.

    how: `stacked` (layers and experts are axes), `layers apart`, or `keys apart` (every expert
    and both halves of gated matrices have keys of their own).
    """
    tensors = dict(sources(state, groups))
    if how == "stacked":
        tensors = _stack(_stack(tensors, "experts.experts"), "decoder.layers")
    elif how == "layers apart":
        tensors = _stack(tensors, "experts.experts")
    else:
        tensors = dict(_halves(tensors))
    with TorchDistWriter(folder, num_files=3) as writer:
        for key, tensor in tensors.items():
            writer.add(key, tensor, cuts(key, tensor, parts))


def cuts(key: str, tensor: torch.Tensor, parts: int) -> tuple[int, ...]:
    """Stacked axes fully, then rows; columns of what follows a cut matrix."""
    axis = 1 if re.search(r"linear_(proj|fc2)\.weight", key) else 0
    lead = tensor.dim() - (2 if key.endswith("weight") and "norm" not in key else 1)
    wanted = [*tensor.shape[:lead], *(1 for _ in tensor.shape[lead:])]
    if lead + axis < tensor.dim() and tensor.shape[lead + axis] % (2 * parts) == 0:
        gated = "linear_fc1" in key and not key.endswith(("_w", "_v"))
        wanted[lead + axis] = 2 * parts if gated else parts
    return tuple(wanted)


def sources(state: Mapping[str, torch.Tensor], groups: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Keys without stacking; experts as `experts.experts.N`."""
    yield "embedding.word_embeddings.weight", _padded(state["model.embed_tokens.weight"])
    if "lm_head.weight" in state:
        yield "output_layer.weight", _padded(state["lm_head.weight"])
    yield "decoder.final_layernorm.weight", state["model.norm.weight"]
    layers = {int(m[1]) for m in (re.match(r"model\.layers\.(\d+)\.", n) for n in state) if m}
    for layer in sorted(layers):
        prefix = f"model.layers.{layer}."
        own = {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}
        for key, tensor in (*_attention(own, groups), *_mlp(own)):
            yield f"decoder.layers.{layer}.{key}", tensor


def _padded(rows: torch.Tensor) -> torch.Tensor:
    return torch.cat([rows, rows.new_full((PADDING_ROWS, rows.shape[1]), 7.0)])


def _attention(own: Mapping, groups: int) -> Iterator[tuple[str, torch.Tensor]]:
    named = {
        "input_layernorm.weight": "input_layernorm.weight",
        "self_attn.o_proj.weight": "self_attention.linear_proj.weight",
        "self_attn.o_proj.bias": "self_attention.linear_proj.bias",
        "self_attn.q_norm.weight": "self_attention.q_layernorm.weight",
        "self_attn.k_norm.weight": "self_attention.k_layernorm.weight",
        "self_attn.sinks": "self_attention.core_attention.softmax_offset",
        "self_attn.q_a_proj.weight": "self_attention.linear_q_down_proj.weight",
        "self_attn.q_b_proj.weight": "self_attention.linear_q_up_proj.weight",
        "self_attn.q_a_layernorm.weight": "self_attention.linear_q_up_proj.layer_norm_weight",
        "self_attn.kv_a_proj_with_mqa.weight": "self_attention.linear_kv_down_proj.weight",
        "self_attn.kv_b_proj.weight": "self_attention.linear_kv_up_proj.weight",
        "self_attn.kv_a_layernorm.weight": "self_attention.linear_kv_up_proj.layer_norm_weight",
    }
    latent = "self_attn.kv_b_proj.weight" in own
    if not latent:
        named["input_layernorm.weight"] = "self_attention.linear_qkv.layer_norm_weight"
        for kind in ("weight", "bias"):
            if f"self_attn.q_proj.{kind}" in own:
                split = [
                    own[f"self_attn.{x}_proj.{kind}"].unflatten(0, (groups, -1)) for x in "qkv"
                ]
                yield f"self_attention.linear_qkv.{kind}", torch.cat(split, 1).flatten(0, 1)
    elif "self_attn.q_proj.weight" in own:
        yield "self_attention.linear_q_proj.weight", own["self_attn.q_proj.weight"]
    yield from ((key, own[name]) for name, key in named.items() if name in own)


def _mlp(own: Mapping) -> Iterator[tuple[str, torch.Tensor]]:
    norm = own["post_attention_layernorm.weight"]
    if "mlp.gate_proj.weight" in own:
        yield "mlp.linear_fc1.layer_norm_weight", norm
        yield from _gated(own, "mlp", "mlp")
        return
    yield "pre_mlp_layernorm.weight", norm
    for name, key in (
        ("gate.weight", "weight"),
        ("gate.e_score_correction_bias", "expert_bias"),
        ("router.weight", "weight"),
        ("router.bias", "bias"),
    ):
        if f"mlp.{name}" in own:
            yield f"mlp.router.{key}", own[f"mlp.{name}"]
    if "mlp.shared_experts.gate_proj.weight" in own:
        yield from _gated(own, "mlp.shared_experts", "mlp.shared_experts")
    if "mlp.experts.gate_up_proj" in own:
        yield from _transposed_experts(own)
        return
    expert = 0
    while f"mlp.experts.{expert}.gate_proj.weight" in own:
        yield from _gated(own, f"mlp.experts.{expert}", f"mlp.experts.experts.{expert}")
        expert += 1


def _gated(own: Mapping, name: str, key: str) -> Iterator[tuple[str, torch.Tensor]]:
    halves = [own[f"{name}.{which}_proj.weight"] for which in ("gate", "up")]
    yield f"{key}.linear_fc1.weight", torch.cat(halves)
    yield f"{key}.linear_fc2.weight", own[f"{name}.down_proj.weight"]


def _transposed_experts(own: Mapping) -> Iterator[tuple[str, torch.Tensor]]:
    """Of [E, H, 2I] whose last axis alternates, and [E, I, H]."""
    for expert, both in enumerate(own["mlp.experts.gate_up_proj"]):
        key = f"mlp.experts.experts.{expert}"
        bias = own["mlp.experts.gate_up_proj_bias"][expert]
        yield f"{key}.linear_fc1.weight", torch.cat([both.T[0::2], both.T[1::2]])
        yield f"{key}.linear_fc1.bias", torch.cat([bias[0::2], bias[1::2]])
        yield f"{key}.linear_fc2.weight", own["mlp.experts.down_proj"][expert].T.contiguous()
        yield f"{key}.linear_fc2.bias", own["mlp.experts.down_proj_bias"][expert]


def _stack(tensors: Mapping, prefix: str) -> dict[str, torch.Tensor]:
    """Numbers behind `prefix` as a leading axis, where all of them have the key."""
    pattern = re.compile(rf"(.*{re.escape(prefix)})\.(\d+)\.(.+)")
    found: dict[str, dict[int, torch.Tensor]] = {}
    result, numbers = {}, set()
    for key, tensor in tensors.items():
        match = pattern.fullmatch(key)
        if match:
            found.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = tensor
            numbers.add(int(match[2]))
        else:
            result[key] = tensor
    for key, members in found.items():
        if set(members) == numbers:
            result[key] = torch.stack([members[n] for n in sorted(members)])
        else:
            place = key.index(prefix) + len(prefix)
            result |= {f"{key[:place]}.{n}{key[place:]}": t for n, t in members.items()}
    return result


def _halves(tensors: Mapping) -> Iterator[tuple[str, torch.Tensor]]:
    for key, tensor in tensors.items():
        if key.endswith("linear_fc1.weight"):
            yield from zip((f"{key}_w", f"{key}_v"), tensor.chunk(2), strict=True)
        else:
            yield key, tensor
