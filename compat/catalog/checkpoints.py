"""What a train rank's synchronous save binds.

The module of the writer is imported by the first save from megatron-core 0.17 on.
"""

from __future__ import annotations

from miles_periodic.compat.binding import Binding

_ADAPTERS = "miles_periodic.compat.bindings.checkpoint_save"
_STRATEGIES = "megatron.core.dist_checkpointing.strategies"
_WRITER = f"{_STRATEGIES}.filesystem_async:FileSystemWriterAsync"
_REQUEST = f"{_STRATEGIES}.async_utils:AsyncRequest"
_SAVES = "a checkpoint is saved"

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
)
