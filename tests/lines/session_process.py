"""A process of Miles's own session server, or one that makes samples of a session's records.

`python session_process.py serve|samples JSON`; it is run under a roll call, with the bindings.
"""

from __future__ import annotations

import importlib
import json
import sys
import urllib.request
from argparse import Namespace


def serve(module: str, backend_url: str, arguments: dict) -> None:
    """The server of `module`, in front of `backend_url`, until it is ended."""
    importlib.import_module(module).run_session_server(Namespace(**arguments), backend_url)


def samples(url: str, arguments: dict, to: str) -> None:
    """Merge the records at `url` as Miles 0.0.2 does, and write tokens and routes to `to`."""
    import numpy as np
    from miles.rollout.generate_utils.openai_endpoint_utils import (
        compute_samples_from_openai_records,
    )
    from miles.rollout.generate_utils.sample_utils import merge_samples
    from miles.rollout.session.session_types import GetSessionResponse
    from miles.utils.types import Sample
    from transformers import AutoTokenizer

    with urllib.request.urlopen(url, timeout=240) as response:
        session = GetSessionResponse.model_validate(json.load(response))
    for record in session.records:  # A random model never stops of itself.
        record.response["choices"][0]["finish_reason"] = "stop"
    tokenizer = AutoTokenizer.from_pretrained(arguments["hf_checkpoint"])
    turns = compute_samples_from_openai_records(
        Namespace(**arguments),
        Sample(prompt=""),
        session.records,
        tokenizer,
        accumulated_token_ids=session.metadata["accumulated_token_ids"],
        max_trim_tokens=session.metadata["max_trim_tokens"],
    )
    merged = merge_samples(turns, tokenizer)
    merged.validate()
    np.savez(to, tokens=merged.tokens, rows=merged.rollout_routed_experts, turns=len(turns))


if __name__ == "__main__":
    {"serve": serve, "samples": samples}[sys.argv[1]](**json.loads(sys.argv[2]))
