"""One process that updates weights with a real Miles's updaters, and prints what servers are told.

    updater_process.py TREE MODE

TREE is the folder that holds the package `miles`, MODE a pause mode. Each updater runs once, bound
as in a run, in a world of one rank; the servers are handles that only note what they are told. The
model is one linear layer. Printed is one line of JSON: updater to [server, method, arguments].
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

TREE, MODE = sys.argv[1:]
sys.path.insert(0, TREE)

import ray  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from lone_process import counts, join  # noqa: E402

from miles_periodic.compat.catalog import bindings_named, names_for_settings  # noqa: E402
from miles_periodic.compat.manifest import RunManifest  # noqa: E402
from miles_periodic.compat.tree import Tree  # noqa: E402

SLUG, SETTING = "kv-preservation", "pause_in_place"
FSDP = ("miles.backends.fsdp_utils", "miles.backends.experimental.fsdp_utils")
MEGATRON = "miles.backends.megatron_utils"
#: Packages that import the whole trainer, for which there is no GPU here: only their files count.
HOLLOW = (*FSDP, MEGATRON, f"{MEGATRON}.update_weight", "miles.backends.training_utils")


#: SGLang shares tensors by handles of GPU memory.
UNSHARED = SimpleNamespace(serialize=lambda *tensors, **options: "tensors")


def hollow_out() -> None:
    """Let the modules of the trainers' packages be imported one by one."""
    for name in HOLLOW:
        folder = Path(TREE, *name.split("."))
        if folder.is_dir():
            package = sys.modules[name] = ModuleType(name)
            package.__path__ = [str(folder)]


def put_in() -> None:
    """The bindings of the setting, as a run on this tree gets them."""
    names = names_for_settings(SLUG, "miles", [SETTING], Tree.at("miles", TREE))
    manifest = RunManifest("run", "", "", (), bindings_named(names))
    join(manifest)


class Handle:
    """A server's Ray handle that notes each call; the answer says that all went well."""

    def __init__(self, name: str, calls: list) -> None:
        self._name, self._calls = name, calls

    def __getattr__(self, method: str) -> SimpleNamespace:
        def remote(**arguments):
            shown = {k: v for k, v in arguments.items() if k in ("mode", "flush_cache")}
            self._calls.append((self._name, method, shown))
            return {"success": True}

        return SimpleNamespace(remote=remote)


def arguments(**more) -> SimpleNamespace:
    """What the updaters read of Miles's arguments."""
    return SimpleNamespace(
        pause_generation_mode=MODE,
        update_weight_buffer_size=1 << 30,
        rollout_num_gpus_per_engine=1,
        check_weight_update_equal=False,
        colocate=True,
        offload_rollout=False,
        **more,
    )


def fsdp(calls: list) -> None:
    """The updater of an FSDP trainer on the servers' own GPUs."""
    module = next(filter(None, map(_import, (f"{name}.update_weight_utils" for name in FSDP))))
    module.MultiprocessingSerializer = UNSHARED
    updater = module.UpdateWeightFromTensor(arguments(), torch.nn.Linear(2, 2))
    updater.connect_rollout_engines([Handle("server", calls)], None)
    updater.update_weights()


def colocated(calls: list) -> None:
    """The updater of a Megatron trainer on the servers' own GPUs, without its model."""
    name = f"{MEGATRON}.update_weight.update_weight_from_tensor"
    module = importlib.import_module(name)
    module.MultiprocessingSerializer = UNSHARED
    kind = module.UpdateWeightFromTensor
    updater = kind.__new__(kind)
    weights = [("weight", torch.ones(2, 2))]
    chunks = SimpleNamespace(get_hf_weight_chunks=lambda local, weight_type: [weights])
    vars(updater).update(
        args=arguments(),
        weight_version=0,
        is_lora=False,
        quantization_config=None,
        use_distribute=False,
        rollout_engines=[Handle("server", calls)],
        weights_getter=dict,
        _hf_weight_iterator=chunks,
        _ipc_gather_group=dist.group.WORLD,
        _ipc_gather_src=0,
        _mm_tower_named_tensors=lambda: None,
    )
    (updater._ipc_engine,) = updater.rollout_engines
    updater.update_weights()


def _import(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and name.startswith(error.name):
            return None
        raise


def main() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    ray.get = lambda references: references
    ray.put = lambda value: value
    torch.Tensor.cuda = lambda tensor, *given, **named: tensor
    hollow_out()
    put_in()
    utilities = importlib.import_module("miles.utils.distributed_utils")
    utilities.get_gloo_group = lambda: dist.group.WORLD
    seen = {}
    for run in (fsdp, colocated):
        calls: list = []
        run(calls)
        seen[run.__name__] = calls
    print(json.dumps({**seen, "consulted": sorted(counts)}))


if __name__ == "__main__":
    main()
