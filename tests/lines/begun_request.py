"""Requests to a real server that are known to have generated something."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Sequence
from typing import Any

from miles_periodic.compat.cpu.sglang_server import SGLangServer

#: However busy the machine is.
LIMIT_SECONDS = 240
#: Tokens that a request has generated, at the least, once it has begun.
NUM_BEGUN = 3


class Begun:
    """What happens to a request that is streamed; threads of a test wait for it."""

    def __init__(self) -> None:
        self._begun = threading.Event()

    def wait(self) -> None:
        """Return once the request has generated `NUM_BEGUN` tokens, or all of its fewer ones."""
        if not self._begun.wait(LIMIT_SECONDS):
            raise TimeoutError(f"The request generated nothing within {LIMIT_SECONDS} s.")

    def generate(
        self, server: SGLangServer, tokens: Sequence[int], num_new_tokens: int, **fields: Any
    ) -> Any:
        """As `SGLangServer.generate`, whose answer it returns too: it stands in the last event."""
        sampling = {"max_new_tokens": num_new_tokens, "temperature": 0.0, "ignore_eos": True}
        body = {
            "input_ids": list(tokens),
            "sampling_params": sampling,
            "return_routed_experts": True,
            "stream": True,
            **fields,
        }
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(
            f"{server.url}/generate", json.dumps(body).encode(), headers
        )
        answer: Any = None
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_SECONDS) as lines:
                for line in lines:
                    if line.startswith(b"data: {"):
                        answer = json.loads(line[6:])
                        if answer["meta_info"]["completion_tokens"] >= NUM_BEGUN:
                            self._begun.set()
        finally:
            self._begun.set()
        return answer
