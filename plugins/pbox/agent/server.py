"""The agent's HTTP interface: who asks, what for, and what an error looks like on the wire."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

from aiohttp import WSMsgType, web

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.agent import commands, files, handover, metrics
from miles_periodic.plugins.pbox.agent.agent import Agent, make_agent
from miles_periodic.plugins.pbox.agent.certificates import server_context
from miles_periodic.plugins.pbox.agent.keys import AGENT, JOB
from miles_periodic.plugins.pbox.agent.refusals import REFUSALS, answer_to, parts_of
from miles_periodic.plugins.pbox.agent.settings import AgentSettings
from miles_periodic.plugins.pbox.limits import Limits
from miles_periodic.plugins.pbox.node.place import remove_files

#: What one upload may have on its way before its sender is told to wait.
READ_BYTES = 1 << 20
#: A connection on which nothing is asked for so long is closed: it may be half open, and each is
#: an open file of the agent's.
IDLE_SECONDS = 60.0
#: Connections that wait to be taken: a rollout asks for all of its sandboxes at once.
BACKLOG = 1024


@web.middleware
async def _known_job(request: web.Request, handler) -> web.StreamResponse:
    """Only a job's token opens anything but the metrics, which tell counts alone."""
    if request.path == "/metrics":
        return await handler(request)
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    job = request.app[AGENT].tokens.job_of(token) if scheme == "Bearer" else None
    if job is None:
        unknown = PeriodicError(
            "The agent knows no job of this token.",
            remedy="Use the token of a job in the agent's token file.",
        )
        return web.json_response(parts_of(unknown), status=401)
    request[JOB] = job
    return await handler(request)


@web.middleware
async def _errors_as_json(request: web.Request, handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except REFUSALS as error:
        status, parts = answer_to(error, is_of_a_file=request.path.endswith(("/file", "/tree")))
        return web.json_response(parts, status=status)


async def _control(request: web.Request) -> web.WebSocketResponse:
    """The connection by which sandboxes live: at its end, however it ends, they are destroyed."""
    agent = request.app[AGENT]
    connection = web.WebSocketResponse(heartbeat=agent.settings.heartbeat_seconds)
    await connection.prepare(request)
    lease = agent.open_lease(request[JOB])
    try:
        await connection.send_json({"lease": lease.name})
        async for message in connection:
            if message.type == WSMsgType.ERROR:
                break
    finally:
        await asyncio.shield(agent.end_lease(lease))
    return connection


async def _create(request: web.Request) -> web.Response:
    agent, asked = request.app[AGENT], await request.json()
    lease = agent.lease_of(request[JOB], asked["lease"])
    limits = Limits.model_validate(asked["limits"]) if asked.get("limits") else None
    wanted = asked.get("image", ""), limits, asked.get("snapshot", "")
    sandbox = await agent.create(lease, *wanted)
    return web.json_response({"name": sandbox.name, "image": sandbox.image.name})


async def _list(request: web.Request) -> web.Response:
    rows = [
        {
            "name": sandbox.name,
            "image": sandbox.image.name,
            "started_at": sandbox.started_at,
            "lives": sandbox.lives,
            "num_commands": sandbox.num_commands,
            "memory_bytes": usage.memory_bytes,
            "num_processes": usage.num_processes,
            "cpu_seconds": usage.cpu_seconds,
            "limits": sandbox.limits.model_dump(),
        }
        for _, sandbox in request.app[AGENT].sandboxes_of(request[JOB])
        for usage in [sandbox.usage()]
    ]
    return web.json_response({"sandboxes": rows})


async def _destroy(request: web.Request) -> web.Response:
    await request.app[AGENT].destroy(request[JOB], request.match_info["name"])
    return web.json_response({})


async def _take_snapshot(request: web.Request) -> web.Response:
    name = request.match_info["name"]
    snapshot = await request.app[AGENT].take_snapshot(request[JOB], name)
    return web.json_response({"snapshot": snapshot.name})


async def _drop_snapshot(request: web.Request) -> web.Response:
    await request.app[AGENT].drop_snapshot(request[JOB], request.match_info["name"])
    return web.json_response({})


async def _node(request: web.Request) -> web.Response:
    agent = request.app[AGENT]
    return web.json_response(
        {
            "platform": agent.settings.platform,
            "cgroup_version": agent.node.cgroups.version,
            "cpus": agent.settings.cpus,
            "images": [name for image in agent.images.all() for name in image.names],
            "warm": {name: pool.num_warm for name, pool in agent.pools.items()},
            "num_sandboxes": agent.num_sandboxes(),
            "max_sandboxes": agent.settings.max_sandboxes,
            "proofs": [
                {"limit": p.limit, "found": p.found, "holds": p.holds} for p in agent.proofs
            ],
        }
    )


def make_app(agent: Agent) -> web.Application:
    """The routes over an agent."""
    app = web.Application(middlewares=[_errors_as_json, _known_job], client_max_size=1 << 20)
    app[AGENT] = agent
    app.add_routes(
        [
            web.get("/v1/control", _control),
            web.get("/v1/node", _node),
            web.get("/v1/files", handover.hand_over),
            web.get("/v1/sandboxes", _list),
            web.post("/v1/sandboxes", _create),
            web.delete("/v1/sandboxes/{name}", _destroy),
            web.post("/v1/sandboxes/{name}/snapshot", _take_snapshot),
            web.delete("/v1/snapshots/{name}", _drop_snapshot),
            web.post("/v1/sandboxes/{name}/exec", commands.execute),
            web.get("/v1/sandboxes/{name}/log", commands.log),
            web.get("/v1/sandboxes/{name}/file", files.download),
            web.put("/v1/sandboxes/{name}/file", files.upload),
            web.get("/v1/sandboxes/{name}/tree", files.download_tree),
            web.put("/v1/sandboxes/{name}/tree", files.upload_tree),
            web.get("/metrics", metrics.metrics),
        ]
    )
    return app


async def serve(
    settings: AgentSettings,
    ready: Callable[[str], None],
    stop_with_stdin: bool = False,
) -> None:
    """Run an agent until SIGTERM or SIGINT; `ready` gets its address when jobs may come.

    stop_with_stdin: stop as well when standard input, a pipe from whoever needs the agent, ends;
    the token file then goes with the agent, and the key of an agent that was made for one run.
    """
    agent = make_agent(settings)
    context = server_context(settings.certificate, settings.key) if settings.certificate else None
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if stop_with_stdin:
        asyncio.get_running_loop().add_reader(0, lambda: os.read(0, 4096) or _stdin_ended(stop))
    # A client that goes away ends its command: nobody is left to read what it writes.
    runner = web.AppRunner(make_app(agent), handler_cancellation=True, access_log=None,
                           shutdown_timeout=1.0, read_bufsize=READ_BYTES,
                           keepalive_timeout=IDLE_SECONDS)  # fmt: skip
    _allow_open_files()
    try:
        await agent.open()
        await runner.setup()
        ready(await _listen(runner, settings.listen, context))
        await stop.wait()
    finally:
        if settings.listen.startswith("unix:"):
            Path(settings.listen.removeprefix("unix:")).unlink(missing_ok=True)
        if stop_with_stdin:
            settings.token_file.unlink(missing_ok=True)
            remove_files(settings.state_dir, settings.cgroup)
        await agent.close()
        await runner.cleanup()


def _allow_open_files() -> None:
    """As many as this process may have: a sandbox takes a few, and a connection one.

    A sandbox's own are in its limits.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _stdin_ended(stop: asyncio.Event) -> None:
    asyncio.get_running_loop().remove_reader(0)
    stop.set()


async def _listen(runner: web.AppRunner, listen: str, context: ssl.SSLContext | None) -> str:
    """Open the socket; the address that clients use."""
    if listen.startswith("unix:"):
        path = Path(listen.removeprefix("unix:"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        await web.UnixSite(runner, str(path), backlog=BACKLOG).start()
        os.chmod(path, 0o666)  # the token decides who may do what
        return listen
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit():
        raise PeriodicError(
            f"{listen!r} is no place to listen at.", remedy="Write unix:PATH or HOST:PORT."
        )
    server = socket.create_server((host.strip("[]"), int(port)), backlog=BACKLOG)
    await web.SockSite(runner, server, ssl_context=context, backlog=BACKLOG).start()
    return f"{'https' if context else 'http'}://{host}:{server.getsockname()[1]}"
