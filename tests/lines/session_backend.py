"""A server for chat requests whose tokens and routes follow from the prompt and weight version.

Row i depends on tokens [0, i] and on the version, so that rows of a prefix that is computed again
under newer weights differ from those that sampled it.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from json_server import JsonServer

from miles_periodic.compat.cpu import tiny_model
from miles_periodic.plugins.delta_router_replay import wire

MODEL = tiny_model.TinyModel()
LAYERS, TOP_K, EXPERTS = MODEL.num_hidden_layers, MODEL.num_experts_per_tok, MODEL.num_experts
REPLY = "So it is."


def routes(tokens, version):
    """int32 (len(tokens), LAYERS, TOP_K): one row per token that was forwarded."""
    sums = np.cumsum(np.asarray(tokens, np.int64) + 31 * version)[:, None]
    first = (sums + np.arange(LAYERS)) % EXPERTS
    second = (first + 1 + sums % (EXPERTS - 1)) % EXPERTS
    return np.stack([first, second], axis=-1).astype(np.int32)


class SessionBackend(JsonServer):
    """Answers chat and `/generate` requests; what it does next is set between them.

    version: of the weights, as answers and `/model_info` report it; numbers make routes differ.
    asked: the chat requests so far. compact: answer routes as blobs. aborts: answer the next chat
    request without routes. ignores_start: answer all rows whatever is asked for.
    """

    def __init__(self, tokenizer) -> None:
        self.reply = tokenizer.encode(REPLY, add_special_tokens=False)
        self.version, self.asked = "0", []
        self.compact = self.aborts = self.ignores_start = False
        super().__init__()

    def get(self, path: str) -> Any:
        return {"weight_version": self.version}

    def post(self, path: str, body: Any) -> Any:
        return self.chat(body) if path.endswith("/chat/completions") else self.generate(body)

    def generate(self, request: dict[str, Any]) -> dict[str, Any]:
        """What the proofs ask for."""
        tokens = [*request["input_ids"], self.reply[0]]
        return {"meta_info": {**self._routes(request, tokens), "cached_tokens": 0}}

    def chat(self, request: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(request)
        tokens = [*request["input_ids"], *self.reply]
        meta_info = {
            "id": f"request-{len(self.asked)}",
            "prompt_tokens": len(request["input_ids"]),
            "completion_tokens": len(self.reply),
            "cached_tokens": 0,
            "weight_version": self.version,
            "output_token_logprobs": [[-0.5, token, None] for token in self.reply],
            **({} if self.aborts else self._routes(request, tokens)),
        }
        message = {"role": "assistant", "content": REPLY}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "meta_info": meta_info}
        self.aborts = False
        return {"id": meta_info["id"], "object": "chat.completion", "choices": [choice]}

    def _routes(self, request: dict[str, Any], tokens: list[int]) -> dict[str, str]:
        start = 0 if self.ignores_start else request.get("routed_experts_start_len", 0)
        version = int(self.version) if self.version.isdigit() else 0
        rows = routes(tokens[:-1], version)[start:]
        content = wire.encode(rows, start, EXPERTS) if self.compact else rows
        return {"routed_experts": base64.b64encode(content.tobytes()).decode()}
