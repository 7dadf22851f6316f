"""A model's `config.json`: the sizes that the target's tensors are held to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.nearest_name import did_you_mean
from miles_periodic.plugins.fast_resharding.element_types import ElementType, element_type
from miles_periodic.plugins.fast_resharding.settings import SLUG

CONFIG = "config.json"
#: One key of several is in the file, depending on what wrote it.
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")


@dataclass(frozen=True)
class ModelConfig:
    """values: what the file says. folder: where it lies, for errors. changed: what a user set."""

    values: Mapping[str, Any]
    folder: Path
    changed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model_type(self) -> str:
        return str(self._need("model_type", "a name such as qwen3_moe"))

    @property
    def element(self) -> ElementType:
        """The type of a tensor for which nothing else is said."""
        name = self.values.get("dtype") or self.values.get("torch_dtype") or "bfloat16"
        return element_type(str(name), str(self.folder / CONFIG))

    def size(self, name: str, otherwise: int | None = None) -> int:
        """A whole number above 0."""
        value = self.values.get(name)
        if value is None and otherwise is not None:
            return otherwise
        value = self._need(name, "a whole number above 0")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._wrong(name, "a whole number above 0")
        return value

    def count(self, name: str) -> int:
        """A whole number from 0; 0 where the file does not say."""
        value = self.values.get(name)
        if value is None:
            return 0
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._wrong(name, "a whole number from 0")
        return value

    def flag(self, name: str, otherwise: bool = False) -> bool:
        value = self.values.get(name, otherwise)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def layers(self, name: str) -> frozenset[int]:
        """Numbers of layers; none where the file does not say."""
        value = self.values.get(name) or []
        if not isinstance(value, list) or not all(type(number) is int for number in value):
            raise self._wrong(name, "a list of numbers of layers")
        return frozenset(value)

    @property
    def num_layers(self) -> int:
        return self.size("num_hidden_layers")

    @property
    def num_extra_layers(self) -> int:
        """Layers for multi-token prediction, behind the model's own."""
        return self.count("num_nextn_predict_layers")

    @property
    def num_experts(self) -> int:
        """Routed experts of a layer."""
        name = next((name for name in _EXPERTS if name in self.values), _EXPERTS[0])
        return self.size(name)

    @property
    def hidden(self) -> int:
        return self.size("hidden_size")

    @property
    def num_heads(self) -> int:
        return self.size("num_attention_heads")

    @property
    def num_groups(self) -> int:
        """Groups of query heads that share a key and a value head."""
        return self.size("num_key_value_heads", self.num_heads)

    @property
    def head_size(self) -> int:
        return self.size("head_dim", self.hidden // self.num_heads)

    def _need(self, name: str, expected: str) -> Any:
        if self.values.get(name) is None:
            raise self._wrong(name, expected)
        return self.values[name]

    def _wrong(self, name: str, expected: str) -> PeriodicError:
        return PeriodicError(
            f"The model's {CONFIG} has no usable {name}.",
            feature=SLUG,
            tree=str(self.folder),
            target=name,
            expected=expected,
            found=repr(self.values.get(name)),
            remedy="Give the folder of the model that was trained with --config.",
        )


def read_config(folder: Path, changes: Mapping[str, Any] | None = None) -> ModelConfig:
    """The `config.json` in `folder`, with `changes` to keys that it has."""
    path = folder / CONFIG
    try:
        values = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError) as error:
        raise PeriodicError(
            f"{path} cannot be read: {error}.",
            feature=SLUG,
            remedy="Give a folder of the model in Hugging Face's form with --config.",
        ) from error
    changes = dict(changes or {})
    for name in changes:
        if name not in values:
            raise PeriodicError(
                f"{path} has no key {name!r} to change.",
                feature=SLUG,
                remedy=did_you_mean(name, values),
            )
    return ModelConfig({**values, **changes}, folder, changes)
