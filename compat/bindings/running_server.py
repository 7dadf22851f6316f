"""A server that came up, looked at by the features: what it says of itself, and what it does."""

from __future__ import annotations

import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from miles_periodic.compat.bindings.features import manager
from miles_periodic.compat.bindings.server_groups import group_started
from miles_periodic.compat.boot import member
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.values import ServerGroup

#: SGLang renamed the page; the older name still works in all that have the newer one.
_REPORTS = ("/server_info", "/get_server_info")
REQUEST_SECONDS = 120.0
PREFILL_SECONDS = 900.0
_POLL_SECONDS = 2.0


def check(wrapped, instance, args, kwargs):
    """Symptom: a server drops or overrules an argument, and only its speed would show it.

    Trigger: an engine's server is up. Takes down: the run, where a feature finds that the server
    does not do what it was set up for. Safe because Miles's start goes on meanwhile, the proofs
    have KV salts of their own, and a server that cannot be asked is only reported. Upstream: none.
    """
    result = wrapped(*args, **kwargs)
    checks = manager().hook.check_running_server.get_hookimpls()
    if instance.node_rank == 0 and checks:
        server_arguments = args[0] if args else kwargs["server_args_dict"]
        server = RunningServer(
            f"http://{instance.server_host}:{instance.server_port}",
            f"http://{instance.router_ip}:{instance.router_port}",
            group_started(instance.worker_type, server_arguments),
        )
        threading.Thread(target=_check, args=(server,), daemon=True).start()
    return result


def _check(server: RunningServer) -> None:
    try:
        offered = {"servers": server.group, "report": server.report(), "generate": server.generate}
    except OSError as error:
        member().notice(f"{server.url} does not say what it runs with: {error}.")
        return
    for implementation in manager().hook.check_running_server.get_hookimpls():
        slug = implementation.plugin_name
        try:
            implementation.function(*(offered[name] for name in implementation.argnames))
        except PeriodicError as error:
            member().report_failure(f"{slug}: {server.url}", str(error))
        except OSError as error:
            member().notice(f"{slug}: {server.url} could not be proved: {error}.")


class RunningServer:
    """One server of a run, its router, and the group that it belongs to."""

    def __init__(self, url: str, router_url: str, group: ServerGroup) -> None:
        self.url, self.router_url, self.group = url, router_url, group

    def report(self) -> Mapping[str, Any]:
        """What the server says of itself; OSError where it does not answer."""
        for page in _REPORTS:
            try:
                return _get(self.url + page)
            except urllib.error.HTTPError as error:
                if error.code != 404:
                    raise
        raise OSError(f"it has none of {', '.join(_REPORTS)}")

    def generate(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """The response to a `/generate` body; through a pair where it is a decode server.

        Raises OSError where no answer comes, or no prefill server within PREFILL_SECONDS.
        """
        if self.group.role != "decode":
            return _post(f"{self.url}/generate", request)
        prefill = self._prefill_worker()
        both = {**request, **bootstrap_fields(prefill["url"], prefill.get("bootstrap_port"))}
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(_post, f"{prefill['url']}/generate", both)
            second = pool.submit(_post, f"{self.url}/generate", both)
            first.result()
            return second.result()

    def _prefill_worker(self) -> Mapping[str, Any]:
        end = time.monotonic() + PREFILL_SECONDS
        while time.monotonic() < end:
            workers = _get(f"{self.router_url}/workers").get("workers", ())
            ready = [w for w in workers if w["worker_type"] == "prefill" and w["is_healthy"]]
            if ready:
                return ready[0]
            time.sleep(_POLL_SECONDS)
        raise OSError(f"no prefill server came up within {PREFILL_SECONDS:.0f} s")


def bootstrap_fields(prefill_url: str, bootstrap_port: int | None) -> dict[str, Any]:
    """What both halves of a pair are told, so that they find each other."""
    return {
        "bootstrap_host": urlsplit(prefill_url).hostname,
        "bootstrap_port": bootstrap_port,
        "bootstrap_room": random.randrange(1 << 63),
    }


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=REQUEST_SECONDS) as response:
        return json.load(response)


def _post(url: str, body: Mapping[str, Any]) -> Any:
    request = urllib.request.Request(
        url, json.dumps(dict(body)).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as response:
        return json.load(response)
