"""A ground belongs to one try at one sample, and gives back what was lent to it."""

import asyncio

import pytest

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.rollout_ground import current_ground, rollout_ground


def test_outside_of_a_rollout_there_is_no_ground_and_the_error_says_who_makes_one():
    with pytest.raises(PeriodicError, match="--custom-generate-function-path"):
        current_ground()


def test_rollouts_side_by_side_have_grounds_of_their_own():
    async def one():
        async with rollout_ground() as ground:
            await asyncio.sleep(0)
            inner = await asyncio.create_task(found())
            return ground is inner, ground

    async def found():
        return current_ground()

    async def both():
        return await asyncio.gather(one(), one())

    (is_own, first), (is_own_too, second) = asyncio.run(both())
    assert is_own and is_own_too and first is not second


def test_what_was_lent_is_taken_back_once_also_after_an_error():
    closed = []

    async def close():
        closed.append(1)

    async def failing():
        async with rollout_ground() as ground:
            ground.at_end(close)
            await ground.close()
            ground.at_end(close)
            raise ValueError

    with pytest.raises(ValueError):
        asyncio.run(failing())
    assert closed == [1, 1]
    with pytest.raises(PeriodicError):
        current_ground()
