"""A server for `/generate` whose tokens and routes follow from the prompt and the weight version.

Shape: 2 layers, top 2 of 8 experts. Row i depends on tokens [0, i] and on the weight version, so
that rows of a prompt that is computed again under newer weights differ from those that sampled.
"""

from __future__ import annotations

import base64

import numpy as np
from json_server import JsonServer

NUM_LAYERS, TOP_K, NUM_EXPERTS = 2, 2, 8


def routes(tokens, version=0):
    """int32 (len(tokens), NUM_LAYERS, TOP_K): one row per token that was forwarded."""
    sums = np.cumsum(np.asarray(tokens, np.int64) + version)[:, None]
    first = (sums + np.arange(NUM_LAYERS)) % NUM_EXPERTS
    second = (first + 1 + sums % (NUM_EXPERTS - 1)) % NUM_EXPERTS
    return np.stack([first, second], axis=-1).astype(np.int32)


class SmallServer(JsonServer):
    """Answers each request by the next of `plan`, which says how many tokens, and how it ends.

    An entry: num_tokens, text, finish ("stop", "length" or "abort"), version, extra_row to send
    the last token's row, too, and num_rows to send fewer rows than there are (None: no routes).
    """

    def __init__(self, plan):
        self.plan = list(plan)
        self.requests = []
        super().__init__()

    def post(self, path, body):
        return self.answer(body)

    def answer(self, request):
        turn = {"num_tokens": 2, "finish": "stop", "version": 0, **self.plan.pop(0)}
        prompt = request["input_ids"]
        new = [(sum(prompt) + i) % 8 for i in range(turn["num_tokens"])]
        meta = {
            "id": f"request-{len(self.requests)}",
            "prompt_tokens": len(prompt),
            "completion_tokens": len(new),
            "cached_tokens": 0,
            "weight_version": str(turn["version"]),
            "finish_reason": {"type": turn["finish"]},
            "output_token_logprobs": [[-0.5 * (i + 1), token, None] for i, token in enumerate(new)],
        }
        if request.get("return_routed_experts"):
            self._add_routes(meta, request, [*prompt, *new], turn)
        self.requests.append(
            {
                "start": request.get("routed_experts_start_len", 0),
                "prompt": prompt,
                "bytes": len(meta.get("routed_experts", "")),
            }
        )
        return {"text": turn.get("text", " ".join(map(str, new))), "meta_info": meta}

    def _add_routes(self, meta, request, tokens, turn):
        start = request.get("routed_experts_start_len", 0)
        end = len(tokens) if turn.get("extra_row") else len(tokens) - 1
        rows = routes(tokens, turn["version"])[start:end]
        num_rows = turn.get("num_rows", len(rows))
        if num_rows is not None:
            meta["routed_experts"] = base64.b64encode(rows[:num_rows].tobytes()).decode()
