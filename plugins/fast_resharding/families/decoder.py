"""What most families share: embeddings, attention by groups of heads, gated MLPs, experts.

Where Megatron has several layer specs, a norm has a name in each; a checkpoint holds one of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from miles_periodic.plugins.fast_resharding.families.table import (
    Part,
    Rule,
    in_layers,
    renamed,
    whole,
)
from miles_periodic.plugins.fast_resharding.model_config import ModelConfig

SOURCE = "decoder.layers.{layer}"
TARGET = "model.layers.{layer}"


def embedding(config: ModelConfig, copies: tuple[str, ...] = ()) -> Rule:
    """Token embeddings, padded to what tensor parallelism divides.

    Some models whose output layer is the embedding are published with both.
    """
    rows = config.size("vocab_size")
    if config.flag("tie_word_embeddings"):
        copies = (*copies, "lm_head.weight")
    part = Part("model.embed_tokens.weight", rows, copies=copies)
    return Rule("embedding.word_embeddings.weight", (part,), (config.hidden,), padded=True)


def head(config: ModelConfig, copies: tuple[str, ...] = ()) -> list[Rule]:
    """The last norm, and the output layer where it is not the embedding."""
    rules = [whole("decoder.final_layernorm.weight", "model.norm.weight", config.hidden)]
    if not config.flag("tie_word_embeddings"):
        part = Part("lm_head.weight", config.size("vocab_size"), copies=copies)
        rules.append(Rule("output_layer.weight", (part,), (config.hidden,), padded=True))
    return rules


def norm(sources: Sequence[str], target: str, size: int) -> list[Rule]:
    """A norm's weight, under the name that the layer spec gave it."""
    return [whole(f"{SOURCE}.{source}", target, size) for source in sources]


def input_norm(config: ModelConfig) -> list[Rule]:
    return norm(
        ("self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight"),
        f"{TARGET}.input_layernorm.weight",
        config.hidden,
    )


def mlp_norm(config: ModelConfig) -> list[Rule]:
    return norm(
        ("mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight"),
        f"{TARGET}.post_attention_layernorm.weight",
        config.hidden,
    )


def grouped_attention(
    config: ModelConfig, *, bias: bool, output_bias: bool = False, head_norms: bool = False
) -> list[Rule]:
    """Attention whose queries, keys and values are one tensor, group by group."""
    size, groups = config.head_size, config.num_groups
    heads = config.num_heads // groups
    kinds = ("weight", "bias") if bias else ("weight",)

    def part(which: str, kind: str, rows: int) -> Part:
        name = f"{TARGET}.self_attn.{which}_proj.{kind}"
        return Part(name, rows, quantises=kind == "weight")

    rules = [
        Rule(
            f"{SOURCE}.self_attention.linear_qkv.{kind}",
            (
                part("q", kind, heads * size),
                part("k", kind, size),
                part("v", kind, size),
            ),
            (config.hidden,) if kind == "weight" else (),
            groups,
        )
        for kind in kinds
    ]
    output = f"{SOURCE}.self_attention.linear_proj"
    target = f"{TARGET}.self_attn.o_proj"
    columns = config.num_heads * size
    rules.append(
        whole(f"{output}.weight", f"{target}.weight", config.hidden, columns, quantises=True)
    )
    if output_bias:
        rules.append(whole(f"{output}.bias", f"{target}.bias", config.hidden))
    if head_norms:
        for which in ("q", "k"):
            source = f"{SOURCE}.self_attention.{which}_layernorm.weight"
            rules.append(whole(source, f"{TARGET}.self_attn.{which}_norm.weight", size))
    return [*input_norm(config), *rules]


def gated(source: str, target: str, inner: int, hidden: int, experts: int = 0) -> list[Rule]:
    """A gated MLP: its first matrix is the gate's rows, then the other's; or each by itself.

    source, target: names of the module. experts: how many of it there are.
    """
    gate = Part(f"{target}.gate_proj.weight", inner, quantises=True)
    up = Part(f"{target}.up_proj.weight", inner, quantises=True)
    down = Part(f"{target}.down_proj.weight", hidden, quantises=True)
    return [
        Rule(f"{source}.linear_fc1.weight", (gate, up), (hidden,), experts=experts),
        Rule(f"{source}.linear_fc1.weight_w", (gate,), (hidden,), experts=experts),
        Rule(f"{source}.linear_fc1.weight_v", (up,), (hidden,), experts=experts),
        Rule(f"{source}.linear_fc2.weight", (down,), (inner,), experts=experts),
    ]


def dense_mlp(config: ModelConfig) -> list[Rule]:
    inner = config.size("intermediate_size")
    return [
        *mlp_norm(config),
        *gated(f"{SOURCE}.mlp", f"{TARGET}.mlp", inner, config.hidden),
    ]


def experts(config: ModelConfig, num_experts: int) -> list[Rule]:
    """Routed experts, each a gated MLP of its own in the target."""
    return gated(
        f"{SOURCE}.mlp.experts.experts.{{expert}}",
        f"{TARGET}.mlp.experts.{{expert}}",
        config.size("moe_intermediate_size"),
        config.hidden,
        num_experts,
    )


def router(config: ModelConfig, num_experts: int, *, correction: bool = False) -> list[Rule]:
    """The router; its correction bias decides between near-equal experts and stays FP32."""
    source, target = f"{SOURCE}.mlp.router", f"{TARGET}.mlp.gate"
    rules = [whole(f"{source}.weight", f"{target}.weight", num_experts, config.hidden)]
    if correction:
        bias = f"{target}.e_score_correction_bias"
        rules.append(whole(f"{source}.expert_bias", bias, num_experts, element="float32"))
    return rules


def shared_experts(config: ModelConfig) -> list[Rule]:
    """The experts that every token passes, as one MLP."""
    count = config.count("n_shared_experts")
    if not count:
        return []
    inner = count * config.size("moe_intermediate_size")
    name = "mlp.shared_experts"
    return gated(f"{SOURCE}.{name}", f"{TARGET}.{name}", inner, config.hidden)


def prediction_layers(config: ModelConfig, layer: Sequence[Rule]) -> list[Rule]:
    """Layers that predict further tokens: `layer` behind the model's own, and what joins them."""
    count, hidden = config.num_extra_layers, config.hidden
    if not count:
        return []
    joined = [
        whole("mtp.layers.{layer}.enorm.weight", f"{TARGET}.enorm.weight", hidden),
        whole("mtp.layers.{layer}.hnorm.weight", f"{TARGET}.hnorm.weight", hidden),
        whole("mtp.layers.{layer}.eh_proj.weight", f"{TARGET}.eh_proj.weight", hidden, 2 * hidden),
        whole(
            "mtp.layers.{layer}.final_layernorm.weight", f"{TARGET}.shared_head.norm.weight", hidden
        ),
    ]
    inner = renamed("mtp.layers.{layer}.transformer_layer", layer, instead_of=SOURCE)
    return in_layers(range(count), [*joined, *inner], first_layer=config.num_layers)


def copies_in_prediction_layers(config: ModelConfig, name: str) -> tuple[str, ...]:
    """Names under which such layers repeat a tensor of the model."""
    first = config.num_layers
    return tuple(f"model.layers.{first + n}.{name}" for n in range(config.num_extra_layers))
