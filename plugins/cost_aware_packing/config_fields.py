"""Look the sizes of a model up in a Hugging Face config or in Megatron's arguments."""

from __future__ import annotations

from collections.abc import Mapping

#: What only models have whose layers cost something that no formula here covers.
_UNKNOWN_KINDS = ("compress_ratios", "linear_attn_config", "hybrid_layer_pattern")


class ConfigFields:
    """Looks values up under any of several names, in a mapping or an object.

    A config that nests its language model (`text_config`) is read there. Raises `ValueError` for
    a name that is missing and for a model whose layers are of a kind that is not known.
    """

    def __init__(self, config: object) -> None:
        self._config = config
        self._config = self.find("text_config", default=config)
        self.hidden = self.need("hidden_size")
        self.num_layers = self.need("num_hidden_layers", "num_layers")
        self.num_heads = self.need("num_attention_heads")
        for name in _UNKNOWN_KINDS:
            if self.find(name):
                raise unknown_cost(f"the model config has {name}, layers")

    def find(self, *names: str, default: object = None) -> object:
        """The first value that is there and not None."""
        for name in names:
            if isinstance(self._config, Mapping):
                value = self._config.get(name)
            else:
                value = getattr(self._config, name, None)
            if value is not None:
                return value
        return default

    def need(self, *names: str) -> int:
        value = self.find(*names)
        if value is None:
            raise ValueError(f"the model config lacks {' or '.join(names)}: add it")
        return value

    def flags_per_layer(self, name: str, flags: list | tuple) -> list[bool]:
        """A list with one entry per layer as booleans."""
        if len(flags) != self.num_layers:
            raise ValueError(
                f"{name} has {len(flags)} entries for {self.num_layers} layers: give one per layer"
            )
        return [bool(flag) for flag in flags]


def unknown_cost(what: str) -> ValueError:
    return ValueError(
        f"{what} whose cost is not known: build CostModel(linear, attention) yourself and "
        "calibrate it with fit"
    )
