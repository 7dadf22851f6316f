"""gpt-oss in BF16: sinks, biases everywhere, all experts of a layer in one transposed tensor.

The target's last axis has the gate and the other half of the first matrix in turn.
"""

from __future__ import annotations

from miles_periodic.plugins.fast_resharding.families.decoder import (
    SOURCE,
    TARGET,
    embedding,
    grouped_attention,
    head,
    mlp_norm,
)
from miles_periodic.plugins.fast_resharding.families.table import (
    Family,
    Part,
    Rule,
    Stacked,
    in_layers,
    plain,
    whole,
)
from miles_periodic.plugins.fast_resharding.model_config import ModelConfig


def rules(config: ModelConfig) -> list[Rule]:
    num_experts = config.num_experts
    router = f"{TARGET}.mlp.router"
    layer = [
        *plain(grouped_attention(config, bias=True, output_bias=True)),
        whole(
            f"{SOURCE}.self_attention.core_attention.softmax_offset",
            f"{TARGET}.self_attn.sinks",
            config.num_heads,
        ),
        *mlp_norm(config),
        whole(f"{SOURCE}.mlp.router.weight", f"{router}.weight", num_experts, config.hidden),
        whole(f"{SOURCE}.mlp.router.bias", f"{router}.bias", num_experts),
        *_experts(config, num_experts),
    ]
    return [embedding(config), *in_layers(range(config.num_layers), layer), *head(config)]


def _experts(config: ModelConfig, num_experts: int) -> list[Rule]:
    hidden, inner = config.hidden, config.size("intermediate_size")
    source = f"{SOURCE}.mlp.experts.experts.{{expert}}"
    target = f"{TARGET}.mlp.experts"
    matrix, bias = (num_experts, hidden, 2 * inner), (num_experts, 2 * inner)
    down = Stacked((num_experts, inner, hidden), transposed=True)

    def halves(name: str, shape: tuple[int, ...], transposed: bool) -> tuple[Part, ...]:
        return tuple(Part(name, inner, Stacked(shape, transposed, slot, 2)) for slot in (0, 1))

    return [
        Rule(
            f"{source}.linear_fc1.weight",
            halves(f"{target}.gate_up_proj", matrix, True),
            (hidden,),
            experts=num_experts,
        ),
        Rule(
            f"{source}.linear_fc1.bias",
            halves(f"{target}.gate_up_proj_bias", bias, False),
            experts=num_experts,
        ),
        Rule(
            f"{source}.linear_fc2.weight",
            (Part(f"{target}.down_proj", hidden, down),),
            (inner,),
            experts=num_experts,
        ),
        Rule(
            f"{source}.linear_fc2.bias",
            (Part(f"{target}.down_proj_bias", hidden, Stacked((num_experts, hidden))),),
            experts=num_experts,
        ),
    ]


FAMILIES = (Family("gpt-oss", ("gpt_oss",), rules),)
