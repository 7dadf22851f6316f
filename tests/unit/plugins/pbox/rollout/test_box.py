"""The sandbox of a rollout, over one that is not real."""

import asyncio

import pytest

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.rollout_ground import rollout_ground
from miles_periodic.plugins.pbox.outcomes import (
    Exited,
    InfrastructureFailure,
    OutOfMemory,
    Result,
    SandboxGone,
)
from miles_periodic.plugins.pbox.rollout import box as module


class FakeBox:
    def __init__(self, results):
        self.results, self.closed = results, 0

    async def exec(self, words, **options):
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    async def read_text(self, path):
        raise FileNotFoundError(path)

    async def close(self):
        self.closed += 1


def result(outcome, lives=True):
    return Result(outcome, b"", b"", 0.0, lives)


@pytest.fixture
def boxes(monkeypatch):
    started, results = [], []

    class FakeHost:
        async def start(self, image, limits):
            started.append(FakeBox(results))
            return started[-1]

    async def next_host():
        return FakeHost()

    monkeypatch.setattr(module, "next_host", next_host)
    started_and_results = started, results
    return started_and_results


def play(rollout):
    """Run a rollout on a ground; the ground afterwards."""

    async def run():
        async with rollout_ground() as ground:
            await rollout()
        return ground

    return asyncio.run(run())


def test_a_rollout_has_one_sandbox_from_its_first_use_to_its_end(boxes):
    started, results = boxes
    results += [result(Exited(0)), result(Exited(1))]

    async def rollout():
        for _ in range(2):
            await module.rollout_box().exec(["true"])

    assert play(rollout).failures == []
    assert [box.closed for box in started] == [1]


def test_a_rollout_that_uses_no_tool_starts_none(boxes):
    async def rollout():
        module.rollout_box()

    play(rollout)
    assert boxes[0] == []


def test_a_sandbox_that_its_command_ended_is_followed_by_another_and_is_no_failure(boxes):
    started, results = boxes
    results += [result(OutOfMemory(1), lives=False), result(Exited(0))]

    async def rollout():
        box = module.rollout_box()
        await box.exec(["fill"])
        assert (await box.exec(["true"])).ok and box.num_lost == 1

    assert play(rollout).failures == []
    assert len(started) == 2


@pytest.mark.parametrize(
    ("error", "may_pass"),
    [
        (InfrastructureFailure("It broke."), True),
        (SandboxGone("It went."), True),
        (PeriodicError("There is no image."), False),
    ],
)
def test_a_failure_is_noted_also_where_the_agent_passes_over_it(boxes, error, may_pass):
    boxes[1].append(error)

    async def rollout():
        with pytest.raises(PeriodicError):
            await module.rollout_box().exec(["true"])

    (failure,) = play(rollout).failures
    assert (failure.error, failure.may_pass) == (error, may_pass)


def test_a_file_that_is_not_there_is_no_failure_of_the_ground(boxes):
    async def rollout():
        with pytest.raises(FileNotFoundError):
            await module.rollout_box().read_text("nowhere")

    assert play(rollout).failures == []
