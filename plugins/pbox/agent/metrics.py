"""Counts of an agent, as Prometheus reads them; nothing in them tells one job of another."""

from __future__ import annotations

from aiohttp import web

from miles_periodic.plugins.pbox.agent.keys import AGENT

_COUNTERS = {
    "created": "sandboxes handed out",
    "started_cold": "sandboxes that were not warm when they were asked for",
    "destroyed": "sandboxes that their job destroyed",
    "refused_full": "sandboxes refused because the node was full",
    "snapshots": "snapshots taken",
    "commands": "commands run",
    "uploads": "files and trees written",
    "downloads": "files and trees read",
}


async def metrics(request: web.Request) -> web.Response:
    """GET /metrics."""
    agent = request.app[AGENT]
    usages = [s.usage() for lease in agent.leases.values() for s in lease.sandboxes.values()]
    lines = []
    for name, meaning in _COUNTERS.items():
        lines += _metric(f"pbox_{name}_total", "counter", meaning, {"": agent.counts[name]})
    lines += _metric("pbox_sandboxes", "gauge", "sandboxes that live", {"": agent.num_sandboxes()})
    lines += _metric("pbox_leases", "gauge", "control connections", {"": len(agent.leases)})
    lines += _metric(
        "pbox_memory_bytes", "gauge", "memory of the jobs' sandboxes",
        {"": sum(usage.memory_bytes for usage in usages)},
    )  # fmt: skip
    by_image = {f'{{image="{name}"}}': pool for name, pool in agent.pools.items()}
    lines += _metric("pbox_warm", "gauge", "sandboxes that wait to be claimed",
                     {label: pool.num_warm for label, pool in by_image.items()})  # fmt: skip
    lines += _metric("pbox_warm_found_dead_total", "counter", "warm sandboxes found dead",
                     {label: pool.num_found_dead for label, pool in by_image.items()})  # fmt: skip
    return web.Response(text="\n".join(lines) + "\n")


def _metric(name: str, kind: str, meaning: str, values: dict[str, int]) -> list[str]:
    rows = [f"{name}{label} {value}" for label, value in values.items()]
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", *rows]
