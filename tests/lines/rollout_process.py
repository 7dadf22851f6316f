"""One process that rolls out with a real Miles over a small server, and prints what came of it.

    rollout_process.py TREE FEATURES CASES

TREE is the folder that holds the package `miles`; FEATURES "on" or "off"; CASES is JSON: a name to
a function of this file and plans of the small server, one per rollout of the sample (a second one
resumes it), or the port of a real server. The bindings are chosen and put in as in a run: by the
catalog for that tree, when their modules are imported.
"""

from __future__ import annotations

import asyncio
import json
import sys
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace

TREE = Path(sys.argv[1])
sys.path.insert(0, str(TREE))
sys.path.insert(1, str(Path(__file__).parent))

import small_server  # noqa: E402
from lone_process import counts, join  # noqa: E402

from miles_periodic.compat.catalog import binding_names, bindings_named  # noqa: E402
from miles_periodic.compat.manifest import FeatureReference, RunManifest  # noqa: E402
from miles_periodic.compat.tree import Tree  # noqa: E402
from miles_periodic.hooks.errors import PeriodicError  # noqa: E402

SLUG = "delta-router-replay"
FEATURE = "miles_periodic.plugins.delta_router_replay.feature:DeltaRouterReplay"
PROMPT = [1, 2, 3, 4, 5]


def put_in():
    features = [FeatureReference(SLUG, FEATURE, {"prove_round_trip": False})]
    bindings = bindings_named(binding_names(SLUG, "miles", Tree.at("miles", TREE)))
    manifest = RunManifest("run", "", "", tuple(features), bindings)
    join(manifest)


class Tokenizer:
    """Whole numbers, separated by spaces; a message is the number of its letters."""

    def encode(self, text, add_special_tokens=False):
        return [int(word) for word in text.split()]

    def decode(self, tokens, **kwargs):
        return " ".join(map(str, tokens))

    def apply_chat_template(self, messages, add_generation_prompt=False, **kwargs):
        tokens = [len(str(m.get("content"))) % 8 for m in messages]
        return tokens + [6] if add_generation_prompt else tokens


def arguments(port):
    return Namespace(
        sglang_router_ip="127.0.0.1",
        sglang_router_port=port,
        sglang_router_policy=None,
        sglang_speculative_algorithm=None,
        use_rollout_routing_replay=True,
        use_rollout_indexer_replay=False,
        use_miles_router=False,
        miles_router_middleware_paths=[],
        num_layers=small_server.NUM_LAYERS,
        moe_router_topk=small_server.TOP_K,
        num_experts=small_server.NUM_EXPERTS,
        rollout_max_response_len=64,
        rollout_max_context_len=None,
        partial_rollout=False,
        mask_offpolicy_in_partial_rollout=False,
        group_rm=False,
        ci_test=False,
        custom_generate_function_path=None,
        generate_max_turns=16,
        generate_multi_samples=False,
        generate_tool_specs_path="rollout_process.TOOLS",
        generate_execute_tool_function_path="rollout_process.call_tool",
        generate_tool_call_parser="qwen25",
        save_debug_trajectory_data=None,
        lora_rank=0,
        lora_adapter_path=None,
        hf_checkpoint="",
        router_policy=None,
    )


TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


async def call_tool(name, parameters):
    return "seen"


def stand_ins():
    """What a tree asks for and the installed SGLang does not have; nothing here uses it."""
    sys.modules["sglang.srt.entrypoints.openai.encoding_dsv4"] = ModuleType("encoding_dsv4")
    sys.modules["rollout_process"] = sys.modules["__main__"]


def state_of(args, generate):
    return SimpleNamespace(
        args=args,
        tokenizer=Tokenizer(),
        processor=None,
        aborted=False,
        generate_fn_semaphore=nullcontext_async(),
        semaphore=nullcontext_async(),
        dp_rank_context=nullcontext,
        generate_function=generate,
    )


class nullcontext_async:
    async def __aenter__(self):
        return self

    async def __aexit__(self, *exception):
        return None


def new_sample():
    from miles.utils.types import Sample

    return Sample(index=0, prompt=" ".join(map(str, PROMPT)), reward=0.0)


async def refactored(args, sample, path):
    from miles.rollout.inference_rollout.compatibility import load_generate_function
    from miles.rollout.inference_rollout.inference_rollout_common import generate_and_rm

    state = state_of(args, load_generate_function(path))
    return await generate_and_rm(state, sample, {"max_new_tokens": 64})


async def single_turn(args, sample):
    return await refactored(args, sample, "miles.rollout.generate_hub.single_turn.generate")


async def multi_turn(args, sample):
    return await refactored(args, sample, "miles.rollout.generate_hub.multi_turn.generate")


async def somebody_elses(args, sample):
    return await refactored(args, sample, "rollout_process.decodes_by_itself")


async def decodes_by_itself(input):
    """A generate function of a user, with two turns and a decoder of its own."""
    import base64

    import numpy as np
    from miles.rollout.base_types import GenerateFnOutput
    from miles.utils.http_utils import post

    sample, args = input.sample, input.args
    sample.tokens = list(PROMPT)
    for _ in range(2):
        request = {"input_ids": sample.tokens, "return_routed_experts": True}
        output = await post(f"http://127.0.0.1:{args.sglang_router_port}/generate", request)
        new = [item[1] for item in output["meta_info"]["output_token_logprobs"]]
        sample.tokens = sample.tokens + new
        sample.response_length += len(new)
        text = output["meta_info"]["routed_experts"].encode("ascii")
        rows = np.frombuffer(base64.b64decode(text), np.int32)
        shape = (len(sample.tokens) - 1, args.num_layers, args.moe_router_topk)
        sample.rollout_routed_experts = rows.reshape(shape)
    sample.status = type(sample).Status.COMPLETED
    return GenerateFnOutput(samples=sample)


async def several_turns(args, sample):
    return await refactored(args, sample, "rollout_process.talks")


async def talks(input):
    """Six turns by Miles's own helpers, with something seen after each."""
    from miles.rollout.base_types import GenerateFnOutput
    from miles.rollout.generate_utils import generate_endpoint_utils as miles
    from miles.utils.http_utils import post

    sample, args = input.sample, input.args
    sample.tokens = list(PROMPT)
    sampling = {"max_new_tokens": 8, "temperature": 0.0, "ignore_eos": True}
    for turn in range(6):
        payload, _ = miles.compute_request_payload(args, sample.tokens, sampling)
        output = await post(f"http://127.0.0.1:{args.sglang_router_port}/generate", payload)
        await miles.update_sample_from_response(args, sample, payload, output, True)
        seen = [turn + 10, turn + 20, turn + 30]
        if turn < 5:
            sample.tokens = sample.tokens + seen
            sample.response_length += len(seen)
            sample.loss_mask += [0] * len(seen)
            sample.rollout_log_probs += [0.0] * len(seen)
    sample.status = type(sample).Status.COMPLETED
    return GenerateFnOutput(samples=sample)


async def older(args, sample):
    from miles.rollout import sglang_rollout

    kind = sglang_rollout.GenerateState
    type(kind)._instances[kind] = state_of(args, None)
    return await sglang_rollout.generate_and_rm(args, sample, {"max_new_tokens": 64})


def shown(sample):
    rows = sample.rollout_routed_experts
    return {
        "tokens": sample.tokens,
        "status": sample.status.value,
        "response_length": sample.response_length,
        "response": sample.response,
        "log_probs": sample.rollout_log_probs,
        "loss_mask": sample.loss_mask,
        "rows": None if rows is None else rows.tolist(),
        "dtype": None if rows is None else rows.dtype.name,
    }


async def run(scenario, plans):
    if isinstance(plans, int):
        return await over_a_real_server(scenario, plans)
    server = small_server.SmallServer([])
    args, sample, samples = arguments(server.port), new_sample(), []
    for plan in plans:
        server.plan.extend(plan)
        try:
            sample = await globals()[scenario](args, sample)
        except PeriodicError as error:
            return {"error": str(error), "requests": server.requests}
        samples.append(json.loads(json.dumps(shown(sample))))
    return {"samples": samples, "requests": server.requests}


async def over_a_real_server(scenario, port):
    """The same with a server of the model that `compat.cpu.tiny_model` writes."""
    from miles.utils import http_utils

    from miles_periodic.compat.cpu.tiny_model import TinyModel

    model, args, requests = TinyModel(), arguments(port), []
    args.num_layers = model.num_hidden_layers
    args.moe_router_topk, args.num_experts = model.num_experts_per_tok, model.num_experts
    native = http_utils._post

    async def recorded(client, url, payload, *rest, **options):
        output = await native(client, url, payload, *rest, **options)
        routes = output["meta_info"].get("routed_experts", "")
        start = payload.get("routed_experts_start_len", 0)
        requests.append({"start": start, "prompt": payload["input_ids"], "bytes": len(routes)})
        return output

    http_utils._post = recorded
    try:
        sample = await globals()[scenario](args, new_sample())
    finally:
        http_utils._post = native
    return {"samples": [shown(sample)], "requests": requests}


async def main():
    stand_ins()
    if sys.argv[2] == "on":
        put_in()
    import httpx
    from miles.utils import http_utils

    http_utils._http_client = httpx.AsyncClient()
    cases = json.loads(sys.argv[3])
    found = {name: await run(*case) for name, case in cases.items()}
    print(json.dumps({**found, "consulted": sorted(counts)}))


if __name__ == "__main__":
    asyncio.run(main())
