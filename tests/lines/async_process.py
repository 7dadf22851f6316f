"""One process with the fully asynchronous rollouts of a Miles at git main, over a small server.

    async_process.py TREE

One group of prompts never ends on the server, the others end at once. When finished groups wait
for the second step, the server's weights change twice. Printed is one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from argparse import Namespace
from types import ModuleType

TREE = sys.argv[1]
sys.path.insert(0, TREE)

from json_server import JsonServer  # noqa: E402
from lone_process import counts, join  # noqa: E402

from miles_periodic.compat.catalog import bindings_named  # noqa: E402
from miles_periodic.compat.manifest import FeatureReference, RunManifest  # noqa: E402
from miles_periodic.compat.plan import make_plan  # noqa: E402
from miles_periodic.compat.tree import Tree  # noqa: E402
from miles_periodic.plugins import features  # noqa: E402
from miles_periodic.plugins.kv_preservation.feature import KVPreservation  # noqa: E402
from miles_periodic.plugins.kv_preservation.settings import KVPreservationSettings  # noqa: E402

SLUG = KVPreservation.slug
SETTINGS = KVPreservationSettings(max_off_policy_steps=1, prove_salt=False)
SLOW = "9 9 9"
logged: list[dict] = []


def put_in() -> None:
    """The bindings that a run on this tree gets."""
    trees = {"miles": Tree.at("miles", TREE)}
    plan = make_plan(features(), [SLUG], trees, environment={}, settings={SLUG: SETTINGS})
    (decision,) = [row.decision for row in plan.rows_of(SLUG) if row.upstream == "miles"]
    bindings = bindings_named(decision.bindings)
    reference = FeatureReference.of(KVPreservation, SETTINGS)
    manifest = RunManifest("run", "", "", (reference,), bindings)
    join(manifest)


class Server(JsonServer):
    """One server and router in one, with a weight version and requests that hang until aborted."""

    protocol_version = "HTTP/1.1"

    def __init__(self) -> None:
        self.version, self.num_answered, self.aborted, self.salts = 1, 0, set(), set()
        super().__init__()

    def get(self, path: str) -> dict:
        workers = {"urls": [self.url], "workers": [{"url": self.url}]}
        return {**workers, "weight_version": str(self.version)}

    def post(self, path: str, body: dict) -> dict:
        if path == "/abort_request":
            self.aborted.add(body["rid"])
            return {}
        return self.generate(body)

    def generate(self, request: dict) -> dict:
        self.salts.add(request["extra_key"])
        is_slow = request["input_ids"][0] == 9
        while is_slow and request["rid"] not in self.aborted:
            time.sleep(0.02)
        self.num_answered += 1
        meta = {
            "weight_version": str(self.version),
            "cached_tokens": 0,
            "prompt_tokens": len(request["input_ids"]),
            "finish_reason": {"type": "abort" if is_slow else "stop"},
            "output_token_logprobs": [[-0.5, 4, None]],
        }
        return {"text": "4", "meta_info": meta}


class Source:
    """Prompts without end; the first one is slow."""

    def __init__(self, kind: type, group_size: int) -> None:
        self.kind, self.group_size, self.given, self.returned = kind, group_size, 0, []

    def get_samples(self, num_groups: int) -> list:
        groups = []
        for _ in range(num_groups):
            prompt = "5 6 7" if self.given else SLOW
            one = {"group_index": self.given, "prompt": prompt, "reward": 0.0}
            indices = range(self.given * self.group_size, (self.given + 1) * self.group_size)
            groups.append([self.kind(index=index, **one) for index in indices])
            self.given += 1
        return groups

    def add_samples(self, groups: list) -> None:
        self.returned += groups


def arguments(port: int) -> Namespace:
    """What Miles reads of its arguments here, completed by the feature as in a run."""
    args = Namespace(
        async_data_buffer_capacity_factor=1.0,
        async_max_concurrent_samples=None,
        async_unused_samples_handler="retry",
        chat_template_path=None,
        custom_async_data_buffer_path=None,
        custom_generate_function_path=None,
        custom_rollout_log_function_path="async_process.keep_metrics",
        dynamic_sampling_filter_path=None,
        group_rm=False,
        hf_checkpoint="",
        lora_adapter_path=None,
        lora_rank=0,
        max_weight_staleness=None,
        mask_offpolicy_in_partial_rollout=False,
        n_samples_per_prompt=2,
        partial_rollout=False,
        rollout_batch_size=2,
        rollout_global_dataset=True,
        rollout_max_context_len=None,
        rollout_max_response_len=8,
        rollout_num_gpus=1,
        rollout_num_gpus_per_engine=1,
        rollout_sample_filter_path=None,
        rollout_skip_special_tokens=False,
        rollout_stop=None,
        rollout_stop_token_ids=None,
        rollout_submission_granularity=None,
        rollout_temperature=1.0,
        rollout_top_k=-1,
        rollout_top_p=1.0,
        save_debug_trajectory_data=None,
        sglang_router_ip="127.0.0.1",
        sglang_router_policy=None,
        sglang_router_port=port,
        sglang_server_concurrency=16,
        sglang_speculative_algorithm=None,
        use_miles_router=True,
        use_rollout_indexer_replay=False,
        use_rollout_routing_replay=False,
    )
    vars(args).update(KVPreservation(SETTINGS).complete_arguments(arguments=vars(args)))
    return args


class Tokenizer:
    """Whole numbers, separated by spaces."""

    def encode(self, text, **options):
        return [int(word) for word in text.split()]


def keep_metrics(rollout_id, args, samples, metrics, rollout_time) -> bool:
    """A user's own log function, which Miles calls first."""
    logged.append(metrics)
    return True


async def steps(server: Server) -> dict:
    from miles.ray.rollout.metrics import log_rollout_data
    from miles.rollout.base_types import RolloutFnConstructorInput, RolloutFnTrainInput
    from miles.rollout.fully_async_rollout import FullyAsyncRolloutFn
    from miles.rollout.inference_rollout import inference_rollout_common
    from miles.utils.types import Sample

    inference_rollout_common.load_tokenizer = lambda *names, **options: Tokenizer()
    inference_rollout_common.load_processor = lambda *names, **options: None
    args = arguments(server.port)
    source = Source(Sample, args.n_samples_per_prompt)
    rollout = FullyAsyncRolloutFn(RolloutFnConstructorInput(args=args, data_source=source))

    async def step(number: int, version: int) -> list:
        output = await rollout(RolloutFnTrainInput(rollout_id=number, weight_version=version))
        samples = [sample for group in output.samples for sample in group]
        log_rollout_data(number, args, samples, output.metrics, 1.0)
        return samples

    first = await step(0, 1)
    num_buffered_groups = args.rollout_batch_size
    while server.num_answered < len(first) + num_buffered_groups * args.n_samples_per_prompt:
        await asyncio.sleep(0.05)
    server.version = 3
    while len(server.aborted) < args.n_samples_per_prompt:
        await asyncio.sleep(0.05)
    second = await step(1, 3)
    while not any(group[0].prompt == SLOW for group in source.returned):
        await asyncio.sleep(0.05)
    return {
        "max_weight_staleness": args.max_weight_staleness,
        "starts": [
            [sample.metadata["miles_periodic"]["start_weight_version"] for sample in samples]
            for samples in (first, second)
        ],
        "prompts": sorted({sample.prompt for sample in [*first, *second]}),
        "aborted": len(server.aborted),
        "num_salts": len(server.salts),
        "consulted": sorted(counts),
        "metrics": [{k: v for k, v in m.items() if "miles_periodic" in k} for m in logged],
    }


async def main() -> None:
    sys.modules["sglang.srt.entrypoints.openai.encoding_dsv4"] = ModuleType("encoding_dsv4")
    sys.modules["async_process"] = sys.modules["__main__"]
    put_in()
    import httpx
    from miles.utils import http_utils

    http_utils._http_client = httpx.AsyncClient(timeout=None)
    print(json.dumps(await asyncio.wait_for(steps(Server()), 240)))


if __name__ == "__main__":
    asyncio.run(main())
