"""A trainer's rank that saves through Miles and then exports through it, with our binding in.

What it exports is a Llama on two ranks of tensor parallelism, see resharded_models.py.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import torch
from lone_process import Member, join
from miles_save import arguments

from miles_periodic.compat import boot
from miles_periodic.compat.catalog import bindings_named
from miles_periodic.compat.cpu.megatron_alone import Rank
from miles_periodic.compat.manifest import FeatureReference, RunManifest
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding.feature import FastResharding
from miles_periodic.plugins.fast_resharding.settings import FastReshardingSettings

CONFIG = {
    "model_type": "llama",
    "dtype": "float32",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 100,
    "tie_word_embeddings": False,
}
CHANGED = 0.25


class Counting(Member):
    """Counts how often each binding is consulted."""

    counts: Counter = Counter()

    def count(self, name):
        self.counts[name] += 1


def exports(rank: Rank, model) -> dict:
    """What both ranks saw of a first export, of one of the same rollout, and of one that fails."""
    feature = FeatureReference.of(FastResharding, FastReshardingSettings())
    join(RunManifest("run", "", "", (feature,), bindings_named(["checkpoint/export"])))
    boot._member = Counting(boot._member.manifest)
    from miles.backends.megatron_utils import model as of_miles
    from miles.utils import distributed_utils

    distributed_utils.init_gloo_group()
    folder = rank.folder / "run"
    (folder / "model").mkdir(parents=True, exist_ok=True)
    (folder / "model" / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    with arguments(folder) as given:
        given.__dict__ |= {
            "save_hf": str(folder / "hf" / "{rollout_id}"),
            "hf_checkpoint": str(folder / "model"),
            "no_save_optim": True,
            "no_save_rng": True,
            "mtp_num_layers": None,
            "tensor_model_parallel_size": 2,
        }
        seen = [_round(of_miles, given, model)]
        with torch.no_grad():
            model.decoder.final_layernorm.weight.fill_(CHANGED)
        seen.append(_round(of_miles, given, model))
        given.hf_checkpoint = str(folder)
        error = ""
        try:
            of_miles.save_hf_model(given, 3, [model])
        except PeriodicError as raised:
            error = str(raised)
    return {"norms": seen, "error": error, "consulted": dict(Counting.counts)}


def _round(of_miles, given, model) -> list[float]:
    """A save, an export, and the last norm in what it published, seen by every rank."""
    from safetensors.torch import load_file

    of_miles.save(3, [model], None, None)
    of_miles.save_hf_model(given, 3, [model])
    published = load_file(Path(given.save_hf.format(rollout_id=3)) / "model.safetensors")
    torch.distributed.barrier()
    return published["model.norm.weight"].tolist()
