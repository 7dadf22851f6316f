"""Feature `fast-resharding`: Megatron's `torch_dist` checkpoints as Hugging Face safetensors.

resharding         reshard(): the whole way
passes             all tasks: converted, read back, verified
report             how far a conversion is, and what it did
dcp_checkpoint     a checkpoint's metadata: tensors, chunks, where each lies
restricted_pickle  its pickles as inert data
torch_items        where a tensor's raw bytes lie in what torch.save wrote
boxes              boxes of tensors, and whether they make up a whole
element_types      one name for each element type
element_policy     which type each target has
model_config       the sizes of a model, from its config.json
origin             names and element types of the model that training started from
families           models as tables of names and splits
matching           which rule each tensor falls under
targets            tensors to write, and what fills each
planner            from metadata and rules to targets, or an error
quantising         matrices in blocks of FP8
shard_layout       headers, index and byte ranges, before a tensor is read
tasks              stretches of shards for workers
source_reader      exactly the bytes that are asked for
source_checksums   what was read against the checksums that lie beside it
conversion         a unit's bytes in the target's type
worker             runs tasks, checks what was written
node_files         which node holds which of a checkpoint's files
local_workers      threads of this process
ray_workers        actors over Ray
ray_nodes          what each node of Ray sees, and who works where
staging            lock, journal, one rename
beside_shards      the target's other files: config, manifest, what is carried over
first_few          many names in an error: the first few
settings           what a user can set, and the sizes
feature            the hooks: exports of a run
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from miles_periodic.plugins.fast_resharding.resharding import Progress, Report, reshard

__all__ = ["Progress", "Report", "reshard"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from miles_periodic.plugins.fast_resharding import resharding

    return getattr(resharding, name)
