"""The routes of one forward, before they reach the host buffer."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any

from miles_periodic.hooks.errors import PeriodicError

_FEATURE = "delta-router-replay"
_SWITCH = "--enable-return-routed-experts"


def own(wrapped, instance, args, kwargs):
    """Symptom: rows of a step are those of its successor, whole or in part, on some steps.

    Trigger: overlap scheduling on a tree that copies results on a stream of their own: what is
    copied is a view of the buffer that the next forward writes, and nothing makes that forward
    wait. Takes down: nothing. Safe because the clone is made on the forward's own stream, in
    order, as later releases do; without overlap there is no output to clone. Upstream: cured in
    0.5.18.
    """
    output = wrapped(*args, **kwargs)
    if output is not None:
        output.topk = output.topk.clone()
        output.out_cache_loc = output.out_cache_loc.clone()
    return output


def check_room(wrapped, instance, args, kwargs):
    """Symptom: the scheduler dies in its first long prefill, or routes are those of a draft model.

    Trigger: the buffer of captured routes is sized by flags that do not bound a forward
    (`--chunked-prefill-size -1` leaves prompts whole, and before 0.5.13 the ranks of DP attention
    were not counted for decoding), or a draft model writes into it, before 0.5.15. Takes down:
    the server, at start and with the flag to change, where it would have died or lied later. Safe
    because nothing else is touched. Upstream: sgl-project/sglang#26860 (live in 0.5.23),
    sgl-project/sglang#26123 (in 0.5.13), sgl-project/sglang#26980 (in 0.5.15).
    """
    outcome = wrapped(*args, **kwargs)
    call = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    module = sys.modules[type(instance).__module__]
    chunk, num_ranks = _chunk_and_ranks(module)
    if _draft_writes(module):
        raise _draft(_server_args(module).speculative_algorithm)
    if chunk is None or chunk <= 0:
        raise _too_small(
            "a bound on the tokens of one prefill",
            f"--chunked-prefill-size {chunk}",
            "Set --chunked-prefill-size to the most tokens that one forward may prefill, such as "
            "8192 (--sglang-chunked-prefill-size in Miles).",
        )
    num_rows = len(instance.device_cache.buffer)
    num_running = call["max_running_requests"]
    if num_rows < num_running * num_ranks:
        raise _too_small(
            f"{num_running * num_ranks} rows: {num_running} requests on each of {num_ranks} ranks",
            f"{num_rows} rows",
            f"Set --chunked-prefill-size to {num_running} or more, or --max-running-requests to "
            f"{num_rows // num_ranks} or less.",
        )
    return outcome


def _chunk_and_ranks(module: ModuleType) -> tuple[int | None, int]:
    """The chunked prefill size and the number of data-parallel ranks, as that module reads them."""
    if hasattr(module, "get_schedule"):
        parallel = module.get_parallel()
        # `num_dp_ranks` from 0.5.22 on, where `dp_size` has another meaning.
        num_ranks = parallel.num_dp_ranks if hasattr(parallel, "num_dp_ranks") else parallel.dp_size
        return module.get_schedule().chunked_prefill_size, num_ranks
    arguments = _server_args(module)
    return arguments.chunked_prefill_size, arguments.dp_size


def _server_args(module: ModuleType) -> Any:
    """The server's arguments, under the name by which that module reads them."""
    read = getattr(module, "get_server_args", None) or module.get_global_server_args
    return read()


def _draft_writes(module: ModuleType) -> bool:
    """Whether there is a draft model, and nothing that keeps it from capturing its routes."""
    if hasattr(module, "disable_routed_experts_capture_for_draft"):
        return False
    return bool(getattr(_server_args(module), "speculative_algorithm", None))


def _draft(algorithm: str) -> PeriodicError:
    return PeriodicError(
        "A draft model of this server writes its routes over those of the target.",
        feature=_FEATURE,
        target=_SWITCH,
        expected="no draft, or an SGLang whose drafts capture nothing (0.5.15 is the first)",
        found=f"--speculative-algorithm {algorithm}",
        remedy="Remove --speculative-algorithm, or use a later SGLang; where the draft has no "
        f"experts, set {_FEATURE}.check_capture_buffer=false.",
    )


def _too_small(expected: str, found: str, remedy: str) -> PeriodicError:
    return PeriodicError(
        "A forward of this server can hold more tokens than its buffer for captured routes.",
        feature=_FEATURE,
        target=_SWITCH,
        expected=expected,
        found=found,
        remedy=remedy,
    )
