"""Miles's rollouts with tools, on a ground that may fail: such a failure is never a reward.

    --custom-generate-function-path miles_periodic.compat.tool_rollouts.agent
    --custom-generate-function-path miles_periodic.compat.tool_rollouts.multi_turn

Each plays Miles's own function of that kind, with its arguments. Where the ground of a try failed,
the sample is played again; where it fails again, the sample is aborted and has no reward. Miles
passes over an exception of an agent and asks for the reward all the same: so what counts is what
was noted on the ground, not what was raised.

An aborted sample leaves its group by Miles's own filter, which replaces the group:

    --dynamic-sampling-filter-path \
        miles.rollout.filter_hub.dynamic_sampling_filters.check_no_aborted
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from argparse import ArgumentParser
from collections.abc import AsyncIterator, Awaitable, Callable
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from miles_periodic.hooks.rollout_ground import GroundFailure, RolloutGround, rollout_ground

if TYPE_CHECKING:
    from miles.rollout.base_types import GenerateFnInput, GenerateFnOutput

NUM_TRIES = 2
#: How often a rollout looks whether Miles aborts all of them: Miles waits for each one's end.
WATCH_SECONDS = 0.1
_log = logging.getLogger(__name__)


async def agent(input: GenerateFnInput) -> GenerateFnOutput:
    """`agentic_tool_call.generate` of Miles, with the agent of --custom-agent-function-path."""
    from miles.rollout.generate_hub.agentic_tool_call import generate

    return await _played(generate, input)


async def multi_turn(input: GenerateFnInput) -> GenerateFnOutput:
    """`multi_turn.generate` of Miles, with the tools of --generate-execute-tool-function-path."""
    from miles.rollout.generate_hub.multi_turn import generate

    return await _played(generate, input)


def _agent_arguments(parser: ArgumentParser) -> None:
    from miles.rollout.generate_hub.agentic_tool_call import generate

    generate.add_arguments(parser)


def _multi_turn_arguments(parser: ArgumentParser) -> None:
    from miles.rollout.generate_hub.multi_turn import generate

    generate.add_arguments(parser)


agent.add_arguments = _agent_arguments
multi_turn.add_arguments = _multi_turn_arguments


async def _played(
    generate: Callable[[GenerateFnInput], Awaitable[GenerateFnOutput]], input: GenerateFnInput
) -> GenerateFnOutput:
    """The output of the first try whose ground held, or the sample aborted.

    Raises what failed where another try cannot help, and in an evaluation, where Miles would
    count a sample without a reward.
    """
    for number in range(1, NUM_TRIES + 1):
        output, failure = await _one_try(generate, input)
        if failure is None:
            return output
        _log.warning("sample %s, try %d of %d: %s",
                     input.sample.index, number, NUM_TRIES, failure.error)  # fmt: skip
        if input.state.aborted:
            return _aborted(input)
        if not failure.may_pass:
            raise failure.error
    if input.evaluation:
        raise failure.error
    return _aborted(input)


async def _one_try(
    generate: Callable[[GenerateFnInput], Awaitable[GenerateFnOutput]], input: GenerateFnInput
) -> tuple[Any, GroundFailure | None]:
    async with rollout_ground() as ground, _ended_with(input.state, ground):
        try:
            output = await generate(input)
        except Exception:
            if not ground.failures:
                raise
            output = None
    return output, ground.failures[0] if ground.failures else None


@contextlib.asynccontextmanager
async def _ended_with(state: Any, ground: RolloutGround) -> AsyncIterator[None]:
    """Take the ground away when Miles aborts its rollouts: a tool may run for minutes yet."""

    async def watch() -> None:
        while not state.aborted:
            await asyncio.sleep(WATCH_SECONDS)
        ground.fail(RuntimeError("Miles aborted its rollouts"))
        await ground.close()

    watching = asyncio.ensure_future(watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def _aborted(input: GenerateFnInput) -> GenerateFnOutput:
    from miles.rollout.base_types import GenerateFnOutput

    sample = deepcopy(input.sample)
    sample.status = type(sample).Status.ABORTED
    sample.remove_sample = True
    return GenerateFnOutput(samples=sample)
