"""An agent without a machine under it."""

import asyncio
import os

import pytest

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.agent import agent as agent_module
from miles_periodic.plugins.pbox.agent import server
from miles_periodic.plugins.pbox.agent.agent import Agent, make_agent
from miles_periodic.plugins.pbox.agent.settings import AgentSettings
from miles_periodic.plugins.pbox.limits import Limits
from miles_periodic.plugins.pbox.node import pool as pool_module
from miles_periodic.plugins.pbox.node.pool import Pool
from miles_periodic.plugins.pbox.outcomes import InfrastructureFailure


def test_an_agent_that_is_not_root_says_so_before_it_touches_anything(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PeriodicError, match="Run it as root"):
        make_agent(AgentSettings(state_dir=tmp_path / "state"))
    assert not (tmp_path / "state").exists()


def test_a_runsc_that_is_not_there_is_an_error_that_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(PeriodicError, match="apt-get install runsc"):
        make_agent(AgentSettings(state_dir=tmp_path / "state", runsc="no-such-runsc"))


@pytest.fixture
def stdin():
    """What to close so that this process's standard input, a pipe, ends."""
    saved, (read, write) = os.dup(0), os.pipe()
    os.dup2(read, 0)
    os.close(read)
    yield write
    os.dup2(saved, 0)
    os.close(saved)


class FakeAgent:
    async def open(self):
        pass

    async def close(self):
        pass


def test_an_agent_of_one_run_takes_its_key_and_token_along(tmp_path, monkeypatch, stdin):
    """Whoever started it was killed, and nobody sweeps a place that has no state any more."""
    monkeypatch.setattr(server, "make_agent", lambda settings: FakeAgent())
    monkeypatch.setattr(server, "_allow_open_files", lambda: None)
    place = tmp_path / "job-7"
    place.mkdir()
    for name in ("key.pem", "certificate.pem", "trusted.pem", "tokens"):
        (place / name).touch()
    settings = AgentSettings(
        listen=f"unix:{place}/socket",
        token_file=place / "tokens",
        state_dir=place / "state",
        cgroup="pbox-job-7",
    )
    asyncio.run(server.serve(settings, lambda address: os.close(stdin), stop_with_stdin=True))
    assert os.listdir(place) == []


@pytest.mark.parametrize("cpus", ["a", "1-", ","])
def test_what_is_no_list_of_cpus_is_refused(cpus):
    with pytest.raises(ValueError):
        AgentSettings(cpus=cpus)


def test_sandboxes_asked_for_together_do_not_all_find_the_last_seat(monkeypatch, tmp_path):
    started = []

    async def start(node, image, limits, kept=None):
        await asyncio.sleep(0)
        started.append(FakeSandbox())
        return started[-1]

    async def ask():
        agent = Agent(AgentSettings(max_sandboxes=2), None, FakeImages(), None)
        agent._starting = asyncio.Semaphore(4)
        lease = agent.open_lease("job")
        asked = [agent.create(lease, "", None) for _ in range(5)]
        return await asyncio.gather(*asked, return_exceptions=True)

    monkeypatch.setattr(agent_module, "start", start)
    answers = asyncio.run(ask())
    refused = [answer for answer in answers if isinstance(answer, InfrastructureFailure)]
    assert (len(started), len(refused)) == (2, 3)
    assert "--max-sandboxes" in str(refused[0])


def test_a_pool_fills_no_seat_that_the_node_does_not_have(monkeypatch):
    """A claim leaves a seat in the pool, and what was claimed still holds one of the node's."""
    started = []

    async def start(*_, **__):
        started.append(FakeSandbox())
        return started[-1]

    async def claim_all():
        agent = Agent(AgentSettings(max_sandboxes=3), None, FakeImages(), None)
        agent._starting = asyncio.Semaphore(4)
        pool = Pool(None, None, Limits(), 2, agent._starting, agent._has_seat)
        agent.pools["base"], lease = pool, agent.open_lease("job")
        for _ in range(4):
            await pool._added()
        claimed = [await pool.claim() for _ in range(2)]
        lease.sandboxes.update((sandbox.name, sandbox) for sandbox in claimed)
        return [await pool._added() for _ in range(2)]

    monkeypatch.setattr(pool_module, "start", start)
    monkeypatch.setattr(FakeSandbox, "answers", lambda _: asyncio.sleep(0, True))
    assert asyncio.run(claim_all()) == [False, False]
    assert len(started) == 3


def test_more_warm_sandboxes_than_there_may_be_are_refused():
    with pytest.raises(ValueError, match="more sandboxes are to be warm than 4"):
        AgentSettings(warm={"base": 3, "other": 2}, max_sandboxes=4)


def test_a_warm_sandbox_whose_claimer_goes_away_is_destroyed():
    sandbox = FakeSandbox()

    async def claim():
        pool = Pool(None, None, Limits(), 1, None, lambda: True)
        pool._warm.append(sandbox)
        claiming = asyncio.ensure_future(pool.claim())
        await asyncio.sleep(0)
        claiming.cancel()
        await asyncio.gather(claiming, return_exceptions=True)
        while not sandbox.destroyed:
            await asyncio.sleep(0)
        return pool.num_warm

    assert asyncio.run(asyncio.wait_for(claim(), 60)) == 0


class FakeSandbox:
    def __init__(self):
        self.name, self.destroyed = str(id(self)), False

    def favour(self):
        pass

    async def answers(self):
        await asyncio.sleep(600)

    async def destroy(self):
        self.destroyed = True


class FakeImages:
    def get(self, name):
        return self

    def as_image(self, name):
        return name
