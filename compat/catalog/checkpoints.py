"""What a train rank's synchronous save and its export bind.

The module of the writer is imported by the first save from megatron-core 0.17 on.
"""

from __future__ import annotations

from miles_periodic.compat.binding import Binding

_ADAPTERS = "miles_periodic.compat.bindings.checkpoint_save"
_STRATEGIES = "megatron.core.dist_checkpointing.strategies"
_WRITER = f"{_STRATEGIES}.filesystem_async:FileSystemWriterAsync"
_REQUEST = f"{_STRATEGIES}.async_utils:AsyncRequest"
_SAVES = "a checkpoint is saved"
_EXPORTS = "a checkpoint is saved in a run with --save-hf"
_GLOO = "miles.utils.distributed_utils:get_gloo_group"

BINDINGS = (
    Binding(
        name="checkpoint/save",
        upstream="megatron",
        target=f"{_STRATEGIES}.torch:TorchDistSaveShardedStrategy.save",
        adapter=f"{_ADAPTERS}:synchronous",
        processes=("trainer",),
        relies_on=(f"{_REQUEST}.execute_sync",),
        only_when=_SAVES,
    ),
    Binding(
        name="checkpoint/save-of-base",
        upstream="megatron",
        target=f"{_STRATEGIES}.base:AsyncSaveShardedStrategy.save",
        adapter=f"{_ADAPTERS}:synchronous",
        processes=("trainer",),
        relies_on=(f"{_REQUEST}.execute_sync",),
        only_when=_SAVES,
    ),
    Binding(
        name="checkpoint/host-tensors",
        upstream="megatron",
        target=f"{_WRITER}.prepare_write_data",
        adapter=f"{_ADAPTERS}:keep_host_tensors",
        only_when=_SAVES,
    ),
    Binding(
        name="checkpoint/waves",
        upstream="megatron",
        target=f"{_WRITER}.get_save_function_and_args",
        adapter=f"{_ADAPTERS}:in_waves",
        relies_on=(f"{_WRITER}.write_preloaded_data", f"{_WRITER}.retrieve_write_results"),
        only_when=_SAVES,
    ),
    *(
        Binding(
            name=f"checkpoint/{name}",
            upstream="miles",
            target=f"miles.backends.megatron_utils.{module}:save_hf_model",
            adapter="miles_periodic.compat.bindings.checkpoint_export:export",
            relies_on=(
                _GLOO,
                "miles.backends.megatron_utils.actor:MegatronTrainRayActor.save_model",
            ),
            only_when=_EXPORTS,
        )
        for name, module in (("export", "model"), ("main-export", "hf_export"))
    ),
)
