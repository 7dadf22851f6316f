"""DeepSeek-V3.2 and GLM-5: latent attention to the keys that an indexer chose.

The indexer is Megatron's (`core_attention.indexer`), whose heads begin with the rows that positions
rotate, as the model is published; or that of Miles's own layer, whose heads end with them in models
with `indexer_rope_interleave`.
"""

from __future__ import annotations

from dataclasses import replace

from miles_periodic.plugins.fast_resharding.families.decoder import SOURCE, TARGET
from miles_periodic.plugins.fast_resharding.families.deepseek import latent_model
from miles_periodic.plugins.fast_resharding.families.table import Family, Part, Rule
from miles_periodic.plugins.fast_resharding.model_config import ModelConfig

#: What a layer is that takes the keys which the last other one chose.
SHARED = ("shared", "S")
GLM = ("glm_moe_dsa",)
_OF_MILES = f"{SOURCE}.self_attention"
_OF_MEGATRON = f"{_OF_MILES}.core_attention.indexer"
_TARGET = f"{TARGET}.self_attn.indexer"


def rules(config: ModelConfig) -> list[Rule]:
    return latent_model(config, indexer(config), indexed_layers(config))


def indexed_layers(config: ModelConfig) -> list[int]:
    """Layers with an indexer of their own, as transformers reads the config."""
    every = range(config.num_layers)
    pattern = config.values.get("index_topk_pattern")
    kinds = list(pattern) if isinstance(pattern, str) else config.kinds("index_topk_pattern")
    kinds = config.kinds("indexer_types") or kinds
    if kinds:
        return [n for n in every if n >= len(kinds) or kinds[n] not in SHARED]
    step = max(config.count("index_topk_freq"), 1)
    is_said = config.values.get("index_skip_topk_offset") is not None
    begin = config.count("index_skip_topk_offset") if is_said else 2
    return [n for n in every if max(n - begin + 1, 0) % step == 0]


def indexer(config: ModelConfig) -> list[Rule]:
    heads, hidden = config.size("index_n_heads"), config.hidden
    queries = config.size("q_lora_rank")
    return [
        *_heads(config, "linear_wq_b.weight", "wq_b.weight", heads, queries),
        *_heads(config, "linear_wk.weight", "wk.weight", 1, hidden),
        *_heads(config, "k_norm.weight", "k_norm.weight", 1, quantises=False),
        *_heads(config, "k_norm.bias", "k_norm.bias", 1, quantises=False),
        *(
            Rule(source, (Part(f"{_TARGET}.weights_proj.weight", heads),), (hidden,))
            for source in (
                f"{_OF_MEGATRON}.linear_weights_proj.weight",
                f"{_OF_MILES}.weights_proj.weight",
            )
        ),
    ]


def _interleaved(config: ModelConfig) -> bool:
    """Whether rotated rows alternate; those of GLM-5 always do in transformers."""
    return config.flag("indexer_rope_interleave", config.model_type in GLM)


def _heads(
    config: ModelConfig, of_megatron: str, name: str, heads: int, *columns: int, quantises=True
) -> list[Rule]:
    """A tensor under both of its names. columns: the size of its other axis, if it has one."""
    size, rotated = config.size("index_head_dim"), config.size("qk_rope_head_dim")
    part = Part(f"{_TARGET}.{name}", size, quantises=quantises)
    halves = (
        replace(part, rows=size - rotated, first=rotated, among=size),
        replace(part, rows=rotated, among=size),
    )
    of_miles = halves if _interleaved(config) else (part,)
    return [
        Rule(f"{_OF_MEGATRON}.{of_megatron}", (part,), columns, heads),
        Rule(f"{_OF_MILES}.{name}", of_miles, columns, heads),
    ]


FAMILIES = (Family("deepseek-v3.2", ("deepseek_v32",), rules), Family("glm5", GLM, rules))
