"""The fields of a `/generate` request, and the proofs before the first one leaves."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any

from miles_periodic.compat.bindings.features import each_answer, manager, merged_answers
from miles_periodic.compat.bindings.generate_post import Post, is_generate, model_info_beside
from miles_periodic.compat.bindings.rollout_scope import asks_frozen_model, current_rollout
from miles_periodic.compat.bindings.routed_experts import token_ids, with_routes
from miles_periodic.compat.boot import member
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.proofs import ServerProof
from miles_periodic.hooks.values import RolloutState

_proofs: dict[tuple[int, str, str, str], asyncio.Task] = {}


def add_fields(wrapped, instance, args, kwargs):
    """Symptom: Miles never asks for a delta of routes on `/generate` and never salts the KV cache.

    Trigger: any path of Miles posts a `/generate` request of a rollout. Takes down: the rollout,
    where two features set one field, a proof of the server fails, or a response's routes are
    refused (the error names request id and rows). Safe because the request is copied, other
    requests and other URLs pass untouched, and Miles keeps its own retries.
    Upstream: sgl-project/sglang#24851 (delta), radixark/miles#2783 (salt).
    """
    return _post(wrapped, args, kwargs)


async def _post(post: Post, args, kwargs):
    call = inspect.signature(post).bind(*args, **kwargs)
    url, request = call.arguments["url"], call.arguments.get("payload")
    rollout = current_rollout()
    if rollout is None or not is_generate(url, request) or asks_frozen_model(url):
        return await post(*args, **kwargs)
    await _prove_server(post, url, request)
    await _learn_weight_version(post, rollout, url)
    fields = merged_answers(
        "generate_request_fields", rollout=rollout, tokens=token_ids(request), request=request
    )
    sent = {**request, **fields}
    call.arguments["payload"] = sent
    return with_routes(rollout, sent, await post(*call.args, **call.kwargs))


async def _prove_server(post: Post, url: str, request: Mapping[str, Any]) -> None:
    """Run every feature's proofs against `url`, each once per event loop and address."""
    loop = id(asyncio.get_running_loop())
    for slug, proofs in each_answer("server_proofs", request=request):
        for proof in proofs:
            key = (loop, url, slug, proof.name)
            if key not in _proofs:
                _proofs[key] = asyncio.ensure_future(_run_proof(post, url, slug, proof))
            await asyncio.shield(_proofs[key])


async def _run_proof(post: Post, url: str, slug: str, proof: ServerProof) -> None:
    responses = [await post(url, dict(request)) for request in proof.requests]
    try:
        proof.check(responses)
    except PeriodicError as error:
        member().report_failure(f"{slug}: {proof.name}", str(error))
        raise


async def _learn_weight_version(post: Post, rollout: RolloutState, url: str) -> None:
    """Ask the server for its weight version at a rollout's first request, with Miles's retries."""
    if rollout.has_started:
        return
    rollout.has_started = True
    if manager().hook.wants_weight_version(rollout=rollout):
        answer = await post(model_info_beside(url), None, action="get")
        version = answer.get("weight_version")
        rollout.weight_version = None if version is None else str(version)
