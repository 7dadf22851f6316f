"""A loop of model and tools, for Miles's agentic rollouts.

    --custom-agent-function-path miles_periodic.plugins.pbox.rollout.agent.play

An agent of your own does the same with `rollout_box()`: its sandbox is there from the first use to
the rollout's end, and what fails under it is noted whatever the agent does with the exception.
"""

from __future__ import annotations

import json
from typing import Any

import aiohttp

from miles_periodic.plugins.pbox.rollout.tools import SPECS, execute

MAX_TURNS = 16
ANSWER_SECONDS = 3600.0


async def play(
    base_url: str, prompt: Any, request_kwargs: dict[str, Any], metadata: dict[str, Any], **_: Any
) -> dict[str, Any]:
    """Play one rollout: the model's turns, each answered by its tools, until it calls none.

    prompt: text, or a list of chat messages. Returns what is merged into the sample's metadata.
    """
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for _turn in range(MAX_TURNS):
            body = {**request_kwargs, "messages": messages, "tools": SPECS}
            async with session.post(f"{base_url}/v1/chat/completions", json=body) as response:
                response.raise_for_status()
                choice = (await response.json())["choices"][0]
            messages.append(choice["message"])
            calls = choice["message"].get("tool_calls") or []
            if not calls or choice["finish_reason"] in ("length", "abort"):
                break
            messages += [await _answer(call) for call in calls]
    return {"num_turns": sum(message["role"] == "assistant" for message in messages)}


async def _answer(call: dict[str, Any]) -> dict[str, Any]:
    name, arguments = call["function"]["name"], call["function"].get("arguments") or "{}"
    try:
        parameters = json.loads(arguments)
    except ValueError:
        said = "The arguments are no JSON."
    else:
        said = await execute(name, parameters)
    return {"role": "tool", "tool_call_id": call["id"], "name": name, "content": said}
