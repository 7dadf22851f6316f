"""Miles's own router in front of one server: `python miles_router.py PORT SERVER`."""

from __future__ import annotations

import sys
import threading
import time
from argparse import Namespace

import requests
from miles.router.router import run_router


def add_worker(router: str, server: str) -> None:
    """Tell the router of the server as soon as it listens."""
    while True:
        try:
            requests.post(f"{router}/add_worker", params={"url": server}, timeout=5)
            return
        except requests.ConnectionError:
            time.sleep(0.2)


if __name__ == "__main__":
    port, server = sys.argv[1:]
    router = f"http://127.0.0.1:{port}"
    threading.Thread(target=add_worker, args=(router, server), daemon=True).start()
    run_router(
        Namespace(
            sglang_router_ip="127.0.0.1",
            sglang_router_port=int(port),
            miles_router_health_check_failure_threshold=3,
            miles_router_max_connections=16,
            miles_router_middleware_paths=[],
            miles_router_timeout=None,
            rollout_health_check_interval=5.0,
        )
    )
