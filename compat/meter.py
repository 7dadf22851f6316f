"""What a run really sent, reused and trained on, written down at Miles's own seams.

The meter is on in rehearsals, with every feature on and off alike. It looks at requests closest to
the wire (inside our bindings) and at training data closest to the trainer (outside of them), and
writes one JSON object per line into `FOLDER/PID.jsonl`.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import time
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import wrapt

from miles_periodic.compat import after_import

REQUESTS, SHARDS, METRICS, TRANSFERS = "request", "shard", "metrics", "transfer"

#: The rollout that a task generates, as its own first request saw it: [name, requests so far].
_rollout: ContextVar[list | None] = ContextVar("miles_periodic_metered_rollout", default=None)


def register_inner(folder: str) -> None:
    """Measure requests as they leave; to be registered before the bindings are."""
    _wrap("miles.utils.http_utils", "post", _metered_post, folder)
    engine = "sglang.srt.distributed.device_communicators.mooncake_transfer_engine"
    _wrap(engine, "MooncakeTransferEngine.batch_transfer_sync", _metered_transfer, folder)


def register_outer(folder: str) -> None:
    """Measure training data as they arrive; to be registered after the bindings were."""
    _wrap("miles.backends.training_utils.data", "get_rollout_data", _metered_shard, folder)
    _wrap("miles.utils.tracking_utils", "log", _metered_metrics, folder)


def _wrap(module: str, name: str, measure: Callable[..., Any], folder: str) -> None:
    def put_in(imported) -> None:
        def wrapper(wrapped, instance, args, kwargs):
            return measure(Path(folder), wrapped, args, kwargs)

        wrapt.wrap_function_wrapper(imported, name, wrapper)

    after_import.register(put_in, module)


def note(kind: str, **parts: Any) -> None:
    """Write down what a binding found out by itself, where this run is metered."""
    from miles_periodic.compat.boot import member

    current = member()
    if current is not None and current.manifest.meter:
        _write(Path(current.manifest.meter), kind, **parts)


def _write(folder: Path, kind: str, **parts: Any) -> None:
    line = json.dumps({"kind": kind, "time": time.time(), "pid": os.getpid(), **parts})
    with (folder / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")


async def _metered_post(folder: Path, post, args, kwargs):
    url = args[0] if args else kwargs["url"]
    request = args[1] if len(args) > 1 else kwargs.get("payload")
    if not (url.endswith("/generate") and isinstance(request, dict) and "input_ids" in request):
        return await post(*args, **kwargs)
    rollout = _rollout.get()
    if rollout is None:
        rollout = [f"{os.getpid()}-{time.monotonic_ns()}", 0]
        _rollout.set(rollout)
    rollout[1] += 1
    began = time.perf_counter()
    response = await post(*args, **kwargs)
    _write(
        folder,
        REQUESTS,
        rollout=rollout[0],
        turn=rollout[1],
        seconds=time.perf_counter() - began,
        **_request_parts(request, response.get("meta_info", {})),
    )
    return response


def _request_parts(request: dict, meta: dict) -> dict[str, Any]:
    asked = {key: value for key, value in request.items() if "routed_experts" in key}
    return {
        "routes_request_bytes": len(json.dumps(asked)) if asked else 0,
        "tokens": list(request["input_ids"]),
        "new_tokens": [item[1] for item in meta.get("output_token_logprobs") or ()],
        "salt": request.get("extra_key"),
        "routes_start": request.get("routed_experts_start_len", 0),
        "routes_bytes": len(meta.get("routed_experts") or ""),
        "cached_tokens": meta.get("cached_tokens", 0),
        "weight_version": str(meta.get("weight_version", "")),
    }


def _metered_transfer(folder: Path, transfer, args, kwargs):
    """Bytes that a prefill server hands to its transfer engine, before they are sent."""
    lengths = inspect.signature(transfer).bind(*args, **kwargs).arguments["lengths"]
    _write(folder, TRANSFERS, bytes=sum(map(int, lengths)))
    return transfer(*args, **kwargs)


def _metered_shard(folder: Path, get_rollout_data, args, kwargs):
    data = get_rollout_data(*args, **kwargs)
    indices = [int(index) for index in data["sample_indices"]]
    _write(
        folder,
        SHARDS,
        indices=indices,
        lengths=[len(tokens) for tokens in data["tokens"]],
        samples={str(index): _digests(data, i) for i, index in enumerate(indices)},
    )
    return data


def _digests(data: dict, position: int) -> dict[str, str]:
    """sha256 of each per-token field of one sample, dtype and shape included."""
    keys = ("tokens", "loss_masks", "rollout_log_probs", "rollout_routed_experts")
    return {key: _digest(data[key][position]) for key in keys if key in data}


def _digest(tensor: Any) -> str:
    """Integers count by value: routes are held in the narrowest dtype, or as int32."""
    array = tensor.detach().cpu().contiguous().numpy()
    if array.dtype.kind in "iu":
        array = array.astype("int64")
    return hashlib.sha256(f"{array.dtype}{array.shape}".encode() + array.tobytes()).hexdigest()


def _metered_metrics(folder: Path, log, args, kwargs):
    metrics = next((a for a in (*args, *kwargs.values()) if isinstance(a, dict)), {})
    plain = {k: float(v) for k, v in metrics.items() if isinstance(v, int | float)}
    _write(folder, METRICS, metrics=plain)
    return log(*args, **kwargs)
