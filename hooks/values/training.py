"""Batches, losses and optimizers of trainers, and what they write into a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """What a data-parallel split decides on: the samples of some optimizer steps, in their order.

    lengths: tokens per sample (prompt and response).
    data_parallel_size: number of ranks; each takes the same number of micro-batches.
    global_batch_size: samples per optimizer step; steps take consecutive samples. None where
        `step_of_sample` says which.
    micro_batch_size: samples per micro-batch, or None where micro-batches are built under a cap.
    max_tokens: token cap of one micro-batch, or None where samples are counted.
    slot_multiple: micro-batches per step must divide by it (virtual pipeline stages).
    model: the arguments a cost model needs, by Megatron's names (hidden_size, num_layers, ...).
    step_of_sample: the optimizer step of each sample, from 0 without gaps, or None for runs of
        `global_batch_size`. Where it is given the trainer takes explicit micro-batches only.
    max_samples: most samples in a micro-batch that is built under a cap; None for no such cap.
    length_multiple: the trainer pads each sample to a multiple of this many tokens (context
        parallelism cuts it into twice as many chunks as there are ranks).
    takes_oversized: whether the trainer takes a sample over `max_tokens`, alone in a micro-batch.
    is_replicated: whether each rank makes the split itself, so that the answer must follow from
        this batch alone, never from the time that a search had.
    """

    lengths: Sequence[int]
    data_parallel_size: int
    global_batch_size: int | None
    micro_batch_size: int | None
    max_tokens: int | None
    slot_multiple: int = 1
    model: dict[str, Any] = field(default_factory=dict)
    step_of_sample: Sequence[int] | None = None
    max_samples: int | None = None
    length_multiple: int = 1
    takes_oversized: bool = False
    is_replicated: bool = False


@dataclass(frozen=True, slots=True)
class DataParallelSplit:
    """Who trains on what, and in which order.

    partitions[rank]: sample indices of the batch in training order; equal counts on every rank
        where micro-batches have a fixed size.
    micro_batches[rank]: lists of positions *within the rank's partition*, one list per
        micro-batch, or None where consecutive runs of `micro_batch_size` are meant.
    num_micro_batches: micro-batches per optimizer step, the same on every rank; None as above.
    """

    partitions: tuple[tuple[int, ...], ...]
    micro_batches: tuple[tuple[tuple[int, ...], ...], ...] | None = None
    num_micro_batches: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class OutputHead:
    """What logits are made of: `hidden @ weight.T * logit_scale`, T tokens, V entries, H wide.

    hidden: (T, H), the same on all ranks of `tp_group`. weight: (V, H), this rank's part of the
    vocabulary, from token `vocab_start` on. tp_group: the process group over which the vocabulary
    is split, or None where it is whole. Tensors of torch, with gradients where the model trains.
    """

    hidden: Any
    weight: Any
    vocab_start: int = 0
    tp_group: Any = None
    logit_scale: float = 1.0


class OffloadedOptimizer(Protocol):
    """A torch optimizer whose masters and moments are in host memory between steps.

    Otherwise like the one it was made from: the same `param_groups` and keys of `state`, whose
    tensors are the ones in host memory; `load_state_dict` copies into them.

    on_stepped: called in a step, on its stream, with pieces that have `param`, `start`, `stop`
        (elements of the flattened parameter) and `master`, their new FP32 values on the device.
    """

    param_groups: list[dict[str, Any]]
    state: Mapping[Any, Any]
    on_stepped: Callable[[Sequence[Any]], None] | None

    def step(self, closure: Any = None) -> Any:
        """Step every parameter that has a gradient."""

    def master(self, param: Any) -> Any:
        """The FP32 data of a parameter in host memory, in its shape; may be written to."""

    def resident(self, params: Iterable[Any] | None = None) -> AbstractContextManager[None]:
        """Real data in `param.data` inside, and back in host memory however it ends."""


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """One tensor, or one object in its serialised form, that a rank writes into a checkpoint.

    name: the checkpoint's key, for messages.
    num_bytes: what it takes in its file.
    staged_bytes: host memory for the copy that is written; 0 where it is written from where it
        lies in host memory already.
    group: entries of different groups never share a file.
    """

    name: str
    num_bytes: int
    staged_bytes: int
    group: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointWaves:
    """What is staged together, and what of it shares a file.

    waves[wave][file]: indices of entries. staging_bytes: what the copies of one wave may take
        together, in bytes; a wave that copies a single entry may take more. None: no bound.
    """

    waves: tuple[tuple[tuple[int, ...], ...], ...]
    staging_bytes: int | None = None
