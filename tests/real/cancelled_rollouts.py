"""A process of a run: Miles's own rollout code, and a server whose weights change meanwhile.

Two rollouts of one group start under the same weights; the weights are updated twice while both
are running. What became of them is printed as one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from argparse import Namespace

import requests
from miles.rollout import sglang_rollout
from miles.rollout.base_types import GenerateFnOutput
from miles.rollout.filter_hub.base_types import call_dynamic_filter
from miles.utils.http_utils import init_http_client, post
from miles.utils.types import Sample

from miles_periodic.compat.bindings import cancellation
from miles_periodic.compat.bindings.rollout_flight import RECORD

#: Far more than the server generates before it is told to stop.
ENDLESS_TOKENS = 4000


def arguments(model: str, router_port: int) -> Namespace:
    """What Miles's rollout code reads of its arguments here."""
    return Namespace(
        hf_checkpoint=model,
        chat_template_path=None,
        custom_generate_function_path="cancelled_rollouts.generate",
        group_rm=True,
        mask_offpolicy_in_partial_rollout=False,
        partial_rollout=False,
        rollout_max_response_len=ENDLESS_TOKENS,
        rollout_num_gpus=1,
        rollout_num_gpus_per_engine=1,
        rollout_seed=0,
        rollout_skip_special_tokens=False,
        rollout_stop=None,
        rollout_stop_token_ids=None,
        rollout_temperature=1.0,
        rollout_top_k=-1,
        rollout_top_p=1.0,
        sglang_dp_size=1,
        sglang_router_ip="127.0.0.1",
        sglang_router_policy=None,
        sglang_router_port=router_port,
        sglang_server_concurrency=8,
        use_distributed_post=False,
        use_miles_router=True,
    )


async def generate(given) -> GenerateFnOutput:
    """Turns of one rollout: short ones with a pause after each, or one without an end."""
    sample, url = given.sample, f"http://127.0.0.1:{given.args.sglang_router_port}/generate"
    tokens = list(range(10, 60))
    for num_tokens in sample.metadata["turns"]:
        sampling = {"max_new_tokens": num_tokens, "ignore_eos": True}
        body = {"input_ids": tokens, "sampling_params": sampling, "return_logprob": True}
        answer = await post(url, body)
        tokens = tokens + [entry[1] for entry in answer["meta_info"]["output_token_logprobs"]]
        sample.metadata["answered"] = sample.metadata.get("answered", 0) + 1
        await asyncio.sleep(0.2)
    sample.status = Sample.Status.COMPLETED
    return GenerateFnOutput(samples=sample)


async def run(args: Namespace, server: str, models: list[str]) -> dict:
    """Two rollouts in flight, two updates under them, and what is left of both."""
    group = [Sample(metadata={"turns": [ENDLESS_TOKENS]}), Sample(metadata={"turns": [4] * 900})]
    one = sglang_rollout.generate_and_rm
    rollouts = [asyncio.ensure_future(one(args, sample, {})) for sample in group]
    while not all(s.metadata.get("answered") for s in group[1:]):
        await asyncio.sleep(0.1)
    for version in ("2", "3"):
        await asyncio.to_thread(update, server, models[int(version) % 2], version)
    updated = time.monotonic()
    done = await asyncio.gather(*rollouts)
    seconds = time.monotonic() - updated
    kept = call_dynamic_filter(None, args, done).keep
    young = await one(args, Sample(metadata={"turns": [4]}), {})
    return {
        "statuses": [sample.status.value for sample in [*done, young]],
        "records": [sample.metadata[RECORD] for sample in [*done, young]],
        "seconds": seconds,
        "group_is_kept": kept,
        "young_is_kept": call_dynamic_filter(None, args, [young]).keep,
        "tally": cancellation.drain_tally(),
    }


def update(server: str, model: str, version: str) -> None:
    """New weights in place."""
    for path, body in (
        ("pause_generation", {"mode": "in_place"}),
        (
            "update_weights_from_disk",
            {"model_path": model, "flush_cache": False, "weight_version": version},
        ),
        ("continue_generation", {}),
    ):
        requests.post(f"{server}/{path}", json=body, timeout=240).raise_for_status()


if __name__ == "__main__":
    router_port, server, *models = sys.argv[1:]
    args = arguments(models[0], int(router_port))
    init_http_client(args)
    print(json.dumps(asyncio.run(run(args, server, models))))
