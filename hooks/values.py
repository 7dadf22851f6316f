"""The plain values that hooks exchange: no upstream type, no torch, ever."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

#: Fields of a `/generate` request that carry images, audio or video.
MEDIA_FIELDS = ("image_data", "audio_data", "video_data")


@dataclass(slots=True)
class RolloutState:
    """One rollout (one trajectory of turns) as the features see it, for as long as it lasts.

    weight_version: the version of the weights that the server reported when the rollout started,
        or None where nothing asked for it.
    has_started: whether its first request was made.
    earlier: what an interrupted rollout that goes on here had already, or None for a new one.
    memory: feature slug to whatever that feature keeps for the rollout.
    rollout_id: names the trajectory among all of a run; the same where Miles resumes it later.
    """

    weight_version: str | None = None
    has_started: bool = False
    earlier: EarlierTurns | None = None
    memory: dict[str, Any] = field(default_factory=dict)
    rollout_id: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True, slots=True)
class Cancel:
    """A rollout is to end now, and nothing of it is to be trained on.

    reason: one clause for the log, such as `it started 3 weight versions ago`.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """What became of the rollouts of one step, by the time it is logged.

    start_weight_versions: for each sample that is trained on, the version under which its rollout
        started; None where nothing asked for it.
    weight_version: the newest version that any server has reported, or None.
    num_cancelled: rollouts that were ended in flight since the last step.
    num_dropped: samples of finished rollouts that were taken out since the last step.
    """

    start_weight_versions: tuple[str | None, ...]
    weight_version: str | None
    num_cancelled: int = 0
    num_dropped: int = 0


@dataclass(frozen=True, slots=True)
class RouteShape:
    """The shape of one token's routes: (num_layers, top_k) out of num_experts."""

    num_layers: int
    top_k: int
    num_experts: int


@dataclass(frozen=True, slots=True)
class SessionPrefix:
    """What a session holds for the checkpoint that its next chat request builds on.

    tokens: of the checkpoint, prompt first; empty before the first turn.
    num_rows: rows of routes, from row 0 on and without a gap, that its records carry for them.
    """

    tokens: Sequence[int] = ()
    num_rows: int = 0


@dataclass(frozen=True, slots=True)
class SessionTurn:
    """One recorded turn of a session.

    tokens: the request's prompt ids and the completion's.
    start: the first row of routes that the request asked for.
    payload: the response's `routed_experts`, or None where it carried none.
    request_id: names the response in errors.
    weight_version: the version that the server reported with the response, or None.
    """

    tokens: Sequence[int]
    start: int
    payload: Any
    request_id: str = ""
    weight_version: str | None = None


@dataclass(frozen=True, slots=True)
class EarlierTurns:
    """What a rollout had before it was interrupted: its tokens, and the routes that sampled them.

    tokens: prompt and response so far. routes: integer array (rows, num_layers, top_k), one row
    per token but the last. shape: of one row.
    """

    tokens: Sequence[int]
    routes: Any
    shape: RouteShape


@dataclass(frozen=True, slots=True)
class RouteAnswer:
    """What the response to one request brought as routes.

    payload: as it came: base64 text, bytes, an array, or None where nothing came.
    start: the row of the trajectory that the request asked from.
    request_id, weight_version: as the server gave them.
    is_aborted: whether the request was cut off; rows may then be missing at its end.
    only_server_counts: whether a text, images or audio went along, so that only the server knows
        how many tokens, and so rows, there were.
    """

    payload: Any
    start: int = 0
    request_id: str = ""
    weight_version: str | None = None
    is_aborted: bool = False
    only_server_counts: bool = False


@dataclass(frozen=True, slots=True)
class RankShare:
    """What one train rank computes of one micro-batch.

    rank: global rank, for messages. micro_batch: its number in the step.
    layers: the model's layer (from 0) of each of the rank's routers, in their order.
    rows: int64 (positions,): for each position of the rank's slice the row that it replays,
        counted over the rows of all samples one after the other; -1 where it is padding.
    """

    rank: int
    micro_batch: int
    layers: Sequence[int]
    rows: Any


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a server refuses to start with beside some other argument.

    argument: name of a field of SGLang's ServerArgs.
    allowed: its only values that are taken; None where any but those in `refused` are.
    refused: values that are not taken; True stands for any that is set.
    where: file and line of the tree that says so, or empty.
    """

    argument: str
    allowed: tuple[Any, ...] | None = None
    refused: tuple[Any, ...] = ()
    where: str = ""

    def refuses(self, value: Any) -> bool:
        """Whether `value` is one that the server would not start with."""
        if self.allowed is not None:
            return value not in self.allowed
        return any(bool(value) if bad is True else value == bad for bad in self.refused)


@dataclass(frozen=True, slots=True)
class ServerGroup:
    """One group of equal SGLang servers, as Miles is about to start them.

    role: `regular`, `prefill` or `decode`.
    arguments: fields of ServerArgs by name, as far as the run sets them.
    refusals_beside: argument to what this tree of SGLang refuses to start with beside it.
    prefill_returns_routes: whether this tree's prefill servers answer with a prompt's routes.
    stands_still: whether this tree's servers of that role compute nothing while they are paused.
    """

    role: str
    arguments: Mapping[str, Any]
    refusals_beside: Callable[[str], Sequence[Refusal]] = lambda argument: ()
    prefill_returns_routes: bool = True
    stands_still: bool = True


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


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """A request that a router has before it.

    number: unique in the router's process.
    path: `/generate` or an OpenAI path.
    tokens: the prompt's token ids as an `array` of 64-bit integers; empty where it is text.
    salt: everything that keeps its KV apart from that of other requests (`extra_key`, adapter).
    """

    number: int
    path: str
    tokens: Sequence[int] = ()
    salt: str = ""


@dataclass(frozen=True, slots=True)
class ServerState:
    """What is known of a server when a request is routed; read from it within the last seconds.

    queue_depth: requests that wait in the server. running_requests: requests in its batch.
    kv_use: share of its KV cache that is in use, 0 to 1; of its fullest rank where it has several.
    load: requests of this router that it has not answered yet; exact, not read.
    prefix_tokens: the request's first tokens that it is expected to hold in its KV cache.
    weight_version: as it reports it, or None.
    """

    url: str
    queue_depth: int = 0
    running_requests: int = 0
    kv_use: float = 0.0
    load: int = 0
    prefix_tokens: int = 0
    weight_version: str | None = None


@dataclass(frozen=True, slots=True)
class RoutedAnswer:
    """What became of a routed request; a count is None where the response does not say it.

    status: the HTTP status, or None where the server could not be reached.
    """

    url: str
    status: int | None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None


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
