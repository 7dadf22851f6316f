"""A multi-turn environment with a calculator, for a model that knows nothing yet.

Each turn the model writes some tokens, the calculator works on the numbers it finds in them (or on
the question's, a random model seldom writes any), and its answer is appended as an observation that
is not trained on. Given the server's answers everything here is the same every time, also where the
calculator is a program that a tool of Miles's runs elsewhere.
"""

from __future__ import annotations

import json
import operator
import re
import time
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from miles_periodic.compat import tool_rollouts
from miles_periodic.compat.meter import note

if TYPE_CHECKING:
    from miles.rollout.base_types import GenerateFnInput, GenerateFnOutput
    from miles.utils.types import Sample

FEWEST_TURNS, MOST_TURNS = 3, 5
TURN_TOKENS = (8, 12, 16, 40)
"""Tokens of a turn, chosen by sample: rollouts of unequal length, with a long tail."""

OPERATIONS = {
    "plus": operator.add,
    "minus": operator.sub,
    "times": operator.mul,
}
INSTRUCTION = "Use the calculator, then say the result."
SIGNS = {"plus": "+", "minus": "-", "times": "*"}
NUMBER = re.compile(r"\d+")
LARGEST_OPERAND = 10**6
TOO_LARGE = "too large"
TOOL_CALL = "tool_call"
"""The meter's kind of a call that a tool of Miles's answered, or failed to."""


def write_prompts(path: Path, num_prompts: int) -> None:
    """Write Miles's prompt data: one JSON object with `prompt` and `label` a line."""
    with path.open("w", encoding="utf-8") as lines:
        for index in range(num_prompts):
            question, label = question_and_label(index)
            prompt = f"{INSTRUCTION} {question}\n"
            lines.write(json.dumps({"prompt": prompt, "label": label}) + "\n")


def write_tools(path: Path, tools: str) -> None:
    """Write Miles's --custom-config-path, by which its older loop hears of a tool's function."""
    text = json.dumps({"generate_execute_tool_function_path": tools})
    path.write_text(text + "\n", encoding="utf-8")


def question_and_label(index: int) -> tuple[str, str]:
    """Question `index` and its answer."""
    word = tuple(OPERATIONS)[index % len(OPERATIONS)]
    left, right = 11 + 7 * index % 89, 5 + 3 * index % 47
    return f"What is {left} {word} {right}?", str(OPERATIONS[word](left, right))


async def generate(input: GenerateFnInput) -> GenerateFnOutput:
    """Miles's --custom-generate-function-path: play one sample.

    Tokens, log-probabilities and routed experts are kept by Miles's own functions; only the
    observations are appended here.
    """
    from miles.rollout.base_types import GenerateFnOutput
    from miles.rollout.generate_utils import generate_endpoint_utils as endpoint
    from miles.utils.http_utils import post

    args, sample, tokenizer = input.args, deepcopy(input.sample), input.state.tokenizer
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    sample.tokens = list(endpoint.compute_prompt_ids_from_sample(input.state, sample))
    num_turns, turn_tokens = plan_of(sample.index)
    sampling = {**input.sampling_params, "max_new_tokens": turn_tokens}
    for turn in range(num_turns):
        payload, halted = endpoint.compute_request_payload(args, sample.tokens, sampling)
        if payload is None:
            sample.status = halted
            break
        output = await post(url, payload)
        await endpoint.update_sample_from_response(
            args, sample, payload=payload, output=output, update_loss_mask=True
        )
        if sample.status == type(sample).Status.ABORTED or turn == num_turns - 1:
            break
        call = tool_call(output["text"], sample.prompt, turn)
        observe(sample, tokenizer, observation(await answer(args, *call)))
    return GenerateFnOutput(samples=sample)


async def generate_with_tools(input: GenerateFnInput) -> GenerateFnOutput:
    """`generate` on a ground that tools may stand on, such as a sandbox, and that may fail."""
    return await tool_rollouts.played(generate, input)


def plan_of(sample_index: int) -> tuple[int, int]:
    """How many turns a sample has, and how many tokens it may write in each."""
    scattered = sample_index * 7 % 11
    num_turns = FEWEST_TURNS + scattered % (MOST_TURNS - FEWEST_TURNS + 1)
    return num_turns, TURN_TOKENS[sample_index % len(TURN_TOKENS)]


def observation(said: str) -> str:
    """What the calculator says to the last turn."""
    return f" The calculator says {said}.\n"


def tool_call(written: str, question: str, turn: int) -> tuple[int, str, int]:
    """The numbers that the model wrote, then the question's, and the operation of the turn."""
    numbers = [int(number) for number in NUMBER.findall(written) + NUMBER.findall(question)]
    left, right, *_ = [*numbers, len(written), turn]
    word = tuple(OPERATIONS)[(len(written) + turn) % len(OPERATIONS)]
    return left, word, right


async def answer(args: Any, left: int, word: str, right: int) -> str:
    """What the calculator says: here, or run by the tool that `args` name, whose time is noted."""
    path = getattr(args, "generate_execute_tool_function_path", None)
    if path is None:
        return calculate(left, word, right)
    from miles.utils.misc import load_function

    began = time.perf_counter()
    try:
        said = await load_function(path)("python", {"code": program(left, word, right)})
    except Exception as error:
        note(TOOL_CALL, failure=str(error))
        raise
    is_right = said == calculate(left, word, right)
    note(TOOL_CALL, seconds=time.perf_counter() - began, wrong="" if is_right else said)
    return said


def calculate(left: int, word: str, right: int) -> str:
    """The calculator: the result, or why there is none."""
    if max(abs(left), abs(right)) > LARGEST_OPERAND:
        return TOO_LARGE
    return str(OPERATIONS[word](left, right))


def program(left: int, word: str, right: int) -> str:
    """The calculator as a program that prints what `calculate` says."""
    return (
        f"left, right = {left}, {right}\n"
        f"is_large = max(abs(left), abs(right)) > {LARGEST_OPERAND}\n"
        f"print({TOO_LARGE!r} if is_large else left {SIGNS[word]} right)\n"
    )


def observe(sample: Sample, tokenizer: Any, text: str) -> None:
    """Append an observation: present in the tokens, absent from the loss."""
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    sample.tokens = sample.tokens + token_ids
    sample.response += text
    sample.response_length += len(token_ids)
    sample.rollout_log_probs += [0.0] * len(token_ids)
    sample.loss_mask += [0] * len(token_ids)


async def reward(args: Any, sample: Sample, **kwargs: Any) -> float:
    """Miles's --custom-rm-path: the share of even token ids among those the model wrote.

    Something that a random model varies in within every group, and can learn within a few steps.
    """
    return share_of_even(sample.tokens[-sample.response_length :], sample.loss_mask)


def share_of_even(token_ids: list[int], loss_mask: list[int]) -> float:
    """The share of even ids among the tokens whose mask is 1; 0.0 when there is none."""
    written = [token for token, mask in zip(token_ids, loss_mask, strict=True) if mask]
    return sum(token % 2 == 0 for token in written) / len(written) if written else 0.0
