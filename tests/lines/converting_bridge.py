"""In the place of Megatron-Bridge, which needs a GPU: Miles's own converters of a weight update.

Miles exports through the bridge. Its converters make the same tensors of the same names, which it
sends to servers; every rank gathers the model for them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType


class AutoBridge:
    """What Miles asks of the bridge."""

    @classmethod
    def from_hf_pretrained(cls, folder, trust_remote_code):
        return cls()

    def save_hf_pretrained(self, model, path) -> None:
        """Collective; the first rank writes one file."""
        import torch.distributed as dist
        from safetensors.torch import save_file

        tensors = {name: tensor.detach().clone() for name, tensor in _converted(model)}
        if dist.get_rank() == 0:
            save_file(tensors, Path(path) / "model.safetensors")
        dist.barrier()


def _converted(model):
    from megatron.training.global_vars import get_args
    from miles.backends.megatron_utils.update_weight import common
    from miles.backends.megatron_utils.update_weight.hf_weight_iterator_direct import (
        HfWeightIteratorDirect,
    )
    from transformers import AutoConfig

    given = get_args()
    name = type(AutoConfig.from_pretrained(given.hf_checkpoint)).__name__.lower()
    iterator = HfWeightIteratorDirect(given, model, model_name=name, quantization_config=None)
    weights = dict(common.named_params_and_buffers(given, model, convert_to_global_name=True))
    for chunk in iterator.get_hf_weight_chunks(weights):
        yield from chunk


def stand_in() -> None:
    """Have this process find it under the bridge's name."""
    module = ModuleType("megatron.bridge")
    module.AutoBridge = AutoBridge
    sys.modules[module.__name__] = module
