"""A trainer's two ranks that save through Miles and then export through it, with our binding in.

What they export is a Llama on two ranks of tensor parallelism, see resharded_models.py. While they
do, no rank may get the memory that the model takes.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import resharded_models
import torch
from lone_process import counts

from miles_periodic.compat.cpu.megatron_alone import Rank
from miles_periodic.hooks.errors import PeriodicError

#: A conversion of one task holds a tensor of 4 MiB in two types, 8 MiB besides, and a stack of 8.
LIMIT_BYTES = 64 << 20
CHANGED = 0.25
CONFIG = {
    "model_type": "llama",
    "dtype": "float32",
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": resharded_models.VOCABULARY,
    "tie_word_embeddings": False,
}
MODEL = {
    **resharded_models.MODELS["llama"],
    "hidden_size": CONFIG["hidden_size"],
    "ffn_hidden_size": CONFIG["intermediate_size"],
    "num_layers": CONFIG["num_hidden_layers"],
    "num_attention_heads": CONFIG["num_attention_heads"],
    "num_query_groups": CONFIG["num_key_value_heads"],
    "kv_channels": CONFIG["head_dim"],
}


def exports(rank: Rank, arguments) -> dict:
    """What a rank saw of an export, of another one of the same rollout, and of one that fails.

    arguments: a context with a trainer's, for a folder.
    """
    # What imports take is no memory of an export.
    import xxhash  # noqa: F401
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from miles.backends.megatron_utils import model as of_miles
    from miles.utils import distributed_utils

    import miles_periodic.plugins.fast_resharding.resharding  # noqa: F401

    resharded_models.MODELS["exported"] = MODEL
    model = resharded_models.build("exported", resharded_models.TENSOR)
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
        chunks = [DistributedDataParallel(model.config, DistributedDataParallelConfig(), model)]
        seen = [_round(of_miles, given, chunks)]
        with torch.no_grad():
            model.decoder.final_layernorm.weight.fill_(CHANGED)
        seen.append(_round(of_miles, given, chunks))
        given.hf_checkpoint = str(folder)
        error = ""
        try:
            of_miles.save_hf_model(given, 3, chunks)
        except PeriodicError as raised:
            error = str(raised)
    return {"rounds": seen, "error": error, "consulted": dict(counts)}


def _round(of_miles, given, chunks) -> dict:
    """A save, an export under a limit, and what every rank sees of what it published."""
    from safetensors.torch import load_file

    of_miles.save(3, chunks, None, None)
    published = Path(given.save_hf.format(rollout_id=3)) / "model.safetensors"
    with _little_memory():
        of_miles.save_hf_model(given, 3, chunks)
        num_bytes = published.stat().st_size
        could_hold = _could_hold(num_bytes)
    norm = load_file(published)["model.norm.weight"]
    torch.distributed.barrier()
    return {"bytes": num_bytes, "could_hold": could_hold, "norm": norm.tolist()}


@contextmanager
def _little_memory() -> Iterator[None]:
    """Nobody in this process gets LIMIT_BYTES more than it has."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    held = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (held + LIMIT_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _could_hold(num_bytes: int) -> bool:
    try:
        return bool(bytearray(num_bytes))
    except MemoryError:
        return False
