"""Plays rollouts with tools by a real Miles, over small servers and real sandboxes.

    tool_rollouts_process.py CASES

CASES is JSON: a list of names of functions of this file. The agent of PBOX_ADDRESS runs what the
model calls. Printed as one line of JSON: what became of each group.
"""

from __future__ import annotations

import asyncio
import json
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType, SimpleNamespace

sys.path.insert(0, str(Path(__file__).parent))

from json_server import JsonServer
from small_server import SmallServer

from miles_periodic.plugins import pbox
from miles_periodic.plugins.pbox.rollout import hosts, tools

HERE = "tool_rollouts_process"
GROUND = "miles_periodic.compat.tool_rollouts"
FILTER = "miles.rollout.filter_hub.dynamic_sampling_filters.check_no_aborted"
FILL = "held = []\nwhile True: held.append(bytearray(b'x' * (1 << 20)))"
said, rewarded, attempts, states = [], [], [], []


def calling(code):
    """The turns of a model that calls Python once."""
    call = json.dumps({"name": "python", "arguments": {"code": code}})
    return [{"text": f"<tool_call>\n{call}\n</tool_call>"}, {"num_tokens": 1}]


async def tell(name, parameters):
    said.append(await tools.execute(name, parameters))
    return said[-1]


async def abort_meanwhile(name, parameters):
    """Miles aborts its rollouts while this tool runs."""
    asyncio.get_running_loop().call_later(0.5, setattr, states[-1], "aborted", True)
    return await tell(name, parameters)


async def break_once(name, parameters):
    """The sandbox of the first attempt is destroyed under its command."""
    attempts.append(name)
    return await (broken if len(attempts) == 1 else tell)(name, parameters)


async def broken(name, parameters):
    """What a node's failure looks like: the sandbox is gone while a command runs."""
    box = pbox.rollout_box()
    await box.exec(["true"])
    await asyncio.gather(box.exec(["sleep", "60"]), _destroy_soon(box))


async def _destroy_soon(box):
    await asyncio.sleep(0.3)
    await box._started.close()


async def careless_agent(base_url, prompt, request_kwargs, metadata, **kwargs):
    """An agent that passes over whatever happens to its tools."""
    try:
        await broken("python", {})
    except Exception:
        return {"careless": True}


async def failing_agent(base_url, prompt, request_kwargs, metadata, **kwargs):
    await broken("python", {})


async def reward(args, sample, **kwargs):
    rewarded.append(sample.index)
    return 0.0


class SessionServer(JsonServer):
    """A session server that holds one finished answer of a model for every session."""

    def post(self, path, body):
        return {"session_id": "one"}

    def delete(self, path):
        return {}

    def get(self, path):
        if not path.startswith("/sessions/"):
            return {}
        choice = {
            "meta_info": {"output_token_logprobs": [[-0.5, 3]]},
            "finish_reason": "stop",
        }
        record = {"timestamp": 0.0, "method": "POST", "path": "/v1/chat/completions",
                  "request": {"input_ids": [1, 2]}, "response": {"choices": [choice]},
                  "status_code": 200}  # fmt: skip
        return {"session_id": "one", "records": [record], "metadata": {}}


def arguments(port, **changed):
    return Namespace(**{
        "sglang_router_ip": "127.0.0.1", "sglang_router_port": port, "sglang_router_policy": None,
        "sglang_speculative_algorithm": None, "use_rollout_routing_replay": False,
        "use_rollout_indexer_replay": False, "use_miles_router": False,
        "miles_router_middleware_paths": [], "rollout_max_response_len": 4096,
        "rollout_max_context_len": None, "partial_rollout": False, "group_rm": False,
        "mask_offpolicy_in_partial_rollout": False, "ci_test": False,
        "generate_max_turns": 4, "generate_multi_samples": False,
        "generate_tool_specs_path": "miles_periodic.plugins.pbox.rollout.tools.SPECS",
        "generate_execute_tool_function_path": f"{HERE}.tell",
        "generate_tool_call_parser": "qwen25", "save_debug_trajectory_data": None,
        "lora_rank": 0, "lora_adapter_path": None, "hf_checkpoint": "", "router_policy": None,
        "custom_rm_path": f"{HERE}.reward", "rollout_seed": 0,
        "custom_generate_function_path": f"{GROUND}.multi_turn",
        "session_server_ip": "127.0.0.1", "session_server_port": port, "max_seq_len": None,
    } | changed)  # fmt: skip


class Tokenizer:
    """Whole numbers, separated by spaces; a message is the number of its letters."""

    def encode(self, text, add_special_tokens=False):
        return [int(word) for word in text.split()]

    def decode(self, tokens, **kwargs):
        return " ".join(map(str, tokens))

    def apply_chat_template(self, messages, add_generation_prompt=False, **kwargs):
        tokens = [len(str(m.get("content"))) % 8 for m in messages]
        return tokens + [6] if add_generation_prompt else tokens


def state_of(args):
    from miles.rollout.inference_rollout.compatibility import load_generate_function

    return SimpleNamespace(
        args=args, tokenizer=Tokenizer(), processor=None, aborted=False,
        generate_fn_semaphore=asyncio.Semaphore(8),
        generate_function=load_generate_function(args.custom_generate_function_path),
    )  # fmt: skip


async def played(args):
    """A group of one sample by Miles's own functions, and what its filter says of the group."""
    from miles.rollout.filter_hub.base_types import call_dynamic_filter
    from miles.rollout.inference_rollout.inference_rollout_common import generate_and_rm_group
    from miles.utils.misc import load_function
    from miles.utils.types import Sample

    said.clear(), rewarded.clear(), attempts.clear()
    states.append(state_of(args))
    samples = [Sample(index=0, prompt="1 2 3 4 5")]
    (sample,) = group = await generate_and_rm_group(states[-1], samples, {"max_new_tokens": 64})
    return {
        "status": sample.status.value, "reward": sample.reward, "removed": sample.remove_sample,
        "kept": call_dynamic_filter(load_function(FILTER), args, group).keep,
        "said": list(said), "rewarded": list(rewarded), "attempts": len(attempts),
        "sandboxes": len(await (await hosts.next_host()).sandboxes()),
    }  # fmt: skip


async def tool_call():
    return await played(arguments(SmallServer(calling("print(6 * 7)")).port))


async def out_of_memory():
    return await played(arguments(SmallServer(calling(FILL)).port))


async def odd_words():
    plan = [{"text": f"<tool_call>\n{json.dumps(call)}\n</tool_call>"} for call in (
        {"name": "python", "arguments": {"code": "\0"}},
        {"name": "python", "arguments": {"code": "print('\ud800')"}},
        {"name": "shell", "arguments": {"wrong": 1}},
    )]  # fmt: skip
    return await played(arguments(SmallServer([*plan, {"num_tokens": 1}]).port))


async def failure_once():
    server = SmallServer(calling("print(1)") * 2)
    changed = {"generate_execute_tool_function_path": f"{HERE}.break_once"}
    del server.plan[1]  # the first try ends with its tool
    return await played(arguments(server.port, **changed))


async def failure_each_time():
    server = SmallServer([calling("print(1)")[0]] * 2)
    changed = {"generate_execute_tool_function_path": f"{HERE}.broken"}
    return await played(arguments(server.port, **changed))


async def abort():
    server = SmallServer(calling("import time\ntime.sleep(600)"))
    changed = {"generate_execute_tool_function_path": f"{HERE}.abort_meanwhile"}
    return await played(arguments(server.port, **changed))


async def agent_that_raises():
    return await _agentic(f"{HERE}.failing_agent", f"{GROUND}.agent")


async def agent_that_passes_over_it():
    return await _agentic(f"{HERE}.careless_agent", f"{GROUND}.agent")


async def agent_under_miles_alone():
    """What Miles does by itself: the exception is logged, and the sample rewarded."""
    from miles_periodic.hooks.rollout_ground import rollout_ground

    async with rollout_ground():
        return await _agentic(
            f"{HERE}.failing_agent", "miles.rollout.generate_hub.agentic_tool_call.generate"
        )


async def _agentic(agent, generate):
    changed = {"custom_agent_function_path": agent, "custom_generate_function_path": generate}
    return await played(arguments(SessionServer().port, **changed))


async def main():
    sys.modules["sglang.srt.entrypoints.openai.encoding_dsv4"] = ModuleType("encoding_dsv4")
    sys.modules[HERE] = sys.modules["__main__"]
    import httpx
    from miles.utils import http_utils

    http_utils._http_client = httpx.AsyncClient()
    print(json.dumps({name: await globals()[name]() for name in json.loads(sys.argv[1])}))
    await hosts.close_hosts()


if __name__ == "__main__":
    asyncio.run(main())
