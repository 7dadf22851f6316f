"""What must be known of the servers before a session's first request leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from miles_periodic.compat.bindings.features import each_answer, manager
from miles_periodic.compat.bindings.session_turn import Turn, ends_the_run
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.proofs import ServerProof

#: url, body, and the method where it is not POST -> the parsed answer.
Ask = Callable[..., Awaitable[Any]]

_proofs: dict[tuple[str, str, str], asyncio.Task] = {}


async def learn(turn: Turn, client: Any, backend_url: str) -> None:
    """Run every feature's proofs once, and fix the session's weight version at its first turn.

    client: the session server's own `httpx.AsyncClient`. Raises httpx.HTTPError where a server
    does not answer, and then asks again at the next request.
    """
    ask = _asking(client)
    with ends_the_run("session/proof"):
        await _prove(ask, backend_url, getattr(turn.arguments, "use_rollout_routing_replay", False))
    await _learn_weight_version(ask, backend_url, turn)


def _asking(client: Any) -> Ask:
    async def ask(url: str, body: Any = None, method: str = "POST") -> Any:
        response = await client.request(method, url, json=body)
        response.raise_for_status()
        return response.json()

    return ask


async def _prove(ask: Ask, backend_url: str, replays: bool) -> None:
    request = {"return_routed_experts": replays}
    for slug, proofs in each_answer("server_proofs", request=request):
        for proof in proofs:
            key = (backend_url, slug, proof.name)
            if key not in _proofs:
                _proofs[key] = asyncio.ensure_future(_run(ask, backend_url, proof, key))
            await asyncio.shield(_proofs[key])


async def _run(ask: Ask, backend_url: str, proof: ServerProof, key: tuple[str, str, str]) -> None:
    """One proof; what did not come to a verdict is forgotten, so that it is tried again."""
    try:
        proof.check([await ask(f"{backend_url}/generate", dict(r)) for r in proof.requests])
    except PeriodicError:
        raise
    except BaseException:
        del _proofs[key]
        raise


async def _learn_weight_version(ask: Ask, backend_url: str, turn: Turn) -> None:
    """Ask for the version that the session's salt is made of; the first answer stays."""
    rollout = turn.rollout
    if rollout.has_started:
        return
    version = None
    if manager().hook.wants_weight_version(rollout=rollout):
        version = (await ask(f"{backend_url}/model_info", method="GET")).get("weight_version")
    if not rollout.has_started:
        rollout.weight_version = None if version is None else str(version)
        rollout.has_started = True
