"""Rollouts that are ended in flight or kept out of training."""

import asyncio
from types import SimpleNamespace

import pytest

from miles_periodic.compat.bindings import cancellation, rollout_traffic, weight_versions
from miles_periodic.compat.bindings.rollout_flight import RECORD, start_of, was_cancelled
from miles_periodic.compat.bindings.rollout_scope import current_rollout
from miles_periodic.hooks import Feature, PeriodicError, hookimpl
from miles_periodic.hooks.values import Cancel

URL = "http://router:1/generate"


class Bounded(Feature):
    """Cancels what started under another version than the newest."""

    slug = "bounded"

    def __init__(self):
        super().__init__()
        self.answers = []

    @hookimpl
    def rollout_verdict(self, rollout, weight_version, finished):
        if weight_version == "broken":
            raise PeriodicError("no count", remedy="Count.")
        if weight_version is not None and rollout.weight_version != weight_version:
            return Cancel(f"{rollout.weight_version} is not {weight_version}")
        return None

    @hookimpl
    def rollout_response(self, rollout, tokens, request, response):
        self.answers.append((rollout.weight_version, list(tokens), dict(request), dict(response)))


class Servers:
    """What Miles's client reaches: one server, its weight version, and requests that hang."""

    def __init__(self):
        self.version, self.requests, self.aborted = "1", [], []
        self.hang = False

    async def post(self, url, payload, max_retries=60, action="post", headers=None):
        if url.endswith("/model_info"):
            return {"weight_version": self.version}
        if url.endswith("/abort_request"):
            self.aborted.append((url, payload["rid"]))
            return ""
        self.requests.append(payload)
        if self.hang:
            await asyncio.Event().wait()
        return {"meta_info": {"weight_version": self.version}}


@pytest.fixture
def servers(stub, monkeypatch):
    made = Servers()

    async def get_worker_urls(args):
        return ["http://server:1", "http://server:2"]

    stub("miles.utils.http_utils", post=made.post)
    stub(
        "miles.rollout.inference_rollout.inference_rollout_train",
        get_worker_urls=get_worker_urls,
    )
    stub("miles.rollout.filter_hub.base_types", DynamicFilterOutput=SimpleNamespace)
    monkeypatch.setattr(cancellation, "WATCH_INTERVAL_SECONDS", 0.01)
    return made


@pytest.fixture
def feature(process):
    made = Bounded()
    process.use(made)
    return made


@pytest.fixture
def turn(servers):
    """`await turn(tokens)` posts one request of the current rollout, as the bindings see it."""

    async def ask(tokens):
        rollout = current_rollout()
        if not rollout.has_started:  # what the request's binding does below this one
            rollout.weight_version, rollout.has_started = servers.version, True
        payload = {"input_ids": list(tokens)}
        return await rollout_traffic.watch(servers.post, None, (URL, payload), {})

    return ask


def test_a_rollout_that_stays_young_is_not_touched(feature, servers, turn, bound, sample):
    async def generate(given):
        await turn([1])
        await turn([1, 2])
        given.status = sample.Status.COMPLETED
        return given

    done = asyncio.run(bound(generate)(sample()))
    assert done.status == sample.Status.COMPLETED
    assert start_of(done) == "1" and not was_cancelled(done)
    assert cancellation.drain_tally() == (0, 0)


def test_features_see_each_answer_with_its_request(feature, servers, turn, bound, sample):
    async def generate(given):
        await turn([1, 2])
        return given

    asyncio.run(bound(generate)(sample()))
    ((version, tokens, request, response),) = feature.answers
    assert (version, tokens, request["input_ids"]) == ("1", [1, 2], [1, 2])
    assert response == {"meta_info": {"weight_version": "1"}}


def test_a_rollout_in_the_middle_of_a_request_is_aborted_on_every_server_by_its_id(
    feature, servers, turn, bound, sample
):
    async def generate(given):
        await turn([1])
        servers.hang, servers.version = True, "2"
        await turn([1, 2])

    done = asyncio.run(asyncio.wait_for(bound(generate)(sample()), 120))
    rid = servers.requests[-1]["rid"]
    assert servers.aborted == [
        ("http://server:1/abort_request", rid),
        ("http://server:2/abort_request", rid),
    ]
    assert done.status == sample.Status.ABORTED and was_cancelled(done)
    assert start_of(done) == "1"
    assert cancellation.drain_tally() == (1, 0)


def test_a_rollout_between_two_requests_ends_before_the_next_one(
    feature, servers, turn, bound, sample
):
    async def generate(given):
        await turn([1])
        weight_versions.saw("2")
        await turn([1, 2])

    done = asyncio.run(bound(generate)(sample()))
    assert done.status == sample.Status.ABORTED
    assert len(servers.requests) == 1 and servers.aborted == []


def test_a_rollout_that_runs_a_tool_is_ended_meanwhile(feature, servers, turn, bound, sample):
    async def generate(given):
        await turn([1])
        servers.version = "2"
        await asyncio.Event().wait()

    done = asyncio.run(asyncio.wait_for(bound(generate)(sample()), 120))
    assert was_cancelled(done)


def test_what_a_cancelled_rollout_holds_is_given_back(feature, servers, turn, bound, sample):
    free = []

    async def generate(given):
        try:
            await turn([1])
            servers.version = "2"
            await asyncio.Event().wait()
        finally:
            free.append("semaphore")

    asyncio.run(asyncio.wait_for(bound(generate)(sample()), 120))
    assert free == ["semaphore"]


def test_a_neighbour_of_a_cancelled_rollout_goes_on(feature, servers, turn, bound, sample):
    async def generate(given):
        await turn([1])
        if given.metadata.get("old"):
            servers.version = "2"
            await asyncio.Event().wait()
        return given

    async def both():
        generate_one = bound(generate)
        old = asyncio.ensure_future(generate_one(sample(metadata={"old": True})))
        while servers.version == "1":
            await asyncio.sleep(0)
        return await old, await generate_one(sample())

    old, young = asyncio.run(asyncio.wait_for(both(), 120))
    assert was_cancelled(old) and not was_cancelled(young)


def test_a_task_that_miles_cancels_itself_stays_cancelled(feature, servers, turn, bound, sample):
    async def generate(given):
        await turn([1])
        await asyncio.Event().wait()

    async def cancel():
        task = asyncio.ensure_future(bound(generate)(sample()))
        while not servers.requests:
            await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())
    assert cancellation.drain_tally() == (0, 0)


def test_a_failure_of_a_rollout_is_miles_own_to_handle(feature, servers, bound, sample):
    async def generate(given):
        raise ValueError("a tool broke")

    with pytest.raises(ValueError, match="a tool broke"):
        asyncio.run(bound(generate)(sample()))


def test_evaluations_are_never_cancelled_nor_put_on_record(feature, servers, turn, bound, sample):
    async def generate(given):
        await turn([1])
        weight_versions.saw("2")
        await turn([1, 2])
        return given

    done = asyncio.run(bound(generate)(sample(), evaluation=True))
    assert done.metadata == {} and "rid" not in servers.requests[0]


def test_an_id_that_a_request_has_is_kept(feature, servers, bound, sample, turn):
    async def generate(given):
        current_rollout().has_started, current_rollout().weight_version = True, "1"
        payload = {"input_ids": [1], "rid": "own"}
        await rollout_traffic.watch(servers.post, None, (URL, payload), {})
        return given

    asyncio.run(bound(generate)(sample()))
    assert servers.requests[0]["rid"] == "own"


def test_a_request_that_cannot_be_aborted_is_told_and_the_rollout_ends(
    feature, servers, turn, bound, sample, process, stub
):
    async def get_worker_urls(args):
        raise OSError("no router")

    stub(
        "miles.rollout.inference_rollout.inference_rollout_train",
        get_worker_urls=get_worker_urls,
    )

    async def generate(given):
        await turn([1])
        servers.hang, servers.version = True, "2"
        await turn([1, 2])

    done = asyncio.run(asyncio.wait_for(bound(generate)(sample()), 120))
    assert was_cancelled(done)
    assert "no router" in process.notices[0]


def test_a_verdict_that_fails_ends_the_run_by_the_roll_call(
    feature, servers, turn, bound, sample, process
):
    async def generate(given):
        await turn([1])
        weight_versions.forget()
        weight_versions.saw("broken")
        await turn([1, 2])

    with pytest.raises(PeriodicError, match="no count"):
        asyncio.run(bound(generate)(sample()))
    assert "no count" in process.failures[0]


def test_a_partial_rollout_that_is_taken_up_again_keeps_its_start(
    feature, servers, turn, bound, sample
):
    seen = []

    async def generate(given):
        await turn([1])
        seen.append(current_rollout().weight_version)
        return given

    servers.version = "2"
    partial = sample(metadata={RECORD: {"start_weight_version": "2"}}, response_length=5)
    weight_versions.saw("2")
    asyncio.run(bound(generate)(partial))
    assert seen == ["2"] and start_of(partial) == "2"


def test_a_partial_rollout_that_is_too_old_is_not_taken_up_again(
    feature, servers, turn, bound, sample
):
    async def generate(given):
        await turn([1])

    weight_versions.saw("3")
    partial = sample(metadata={RECORD: {"start_weight_version": "2"}}, response_length=5)
    done = asyncio.run(bound(generate)(partial))
    assert was_cancelled(done) and servers.requests == []


def test_a_retried_prompt_starts_afresh(feature, servers, turn, bound, sample):
    async def generate(given):
        await turn([1])
        return given

    servers.version = "3"
    record = {"start_weight_version": "1", "cancelled": "too old"}
    done = asyncio.run(bound(generate)(sample(metadata={RECORD: record})))
    assert start_of(done) == "3" and not was_cancelled(done)


def test_all_samples_of_one_rollout_get_its_start(feature, servers, turn, bound, sample):
    async def generate(given):
        await turn([1])
        return [sample(), sample()]

    assert [start_of(s) for s in asyncio.run(bound(generate)(sample()))] == ["1", "1"]


def test_without_a_bound_requests_get_no_id(feature, servers, turn, bound, sample):
    async def generate(given):
        await turn([1])
        return given

    done = asyncio.run(bound(generate, cancellable=False)(sample()))
    assert "rid" not in servers.requests[0] and start_of(done) == "1"


def filtered(group):
    def call_dynamic_filter(fn, *args, **kwargs):
        return "the user's own answer"

    return cancellation.drop_group(call_dynamic_filter, None, (None, "args", group), {})


def started(sample, version, **record):
    return sample(metadata={RECORD: {"start_weight_version": version, **record}})


def test_a_group_with_a_cancelled_rollout_is_not_trained_on(feature, servers, sample):
    weight_versions.saw("1")
    group = [started(sample, "1", cancelled="too old"), started(sample, "1")]
    assert filtered(group).keep is False
    assert cancellation.drain_tally() == (0, 1)


def test_a_group_with_a_finished_rollout_that_is_too_old_is_not_trained_on(
    feature, servers, sample
):
    weight_versions.saw("2")
    assert filtered([started(sample, "2"), [started(sample, "1")]]).keep is False
    assert cancellation.drain_tally() == (0, 2)


def test_other_groups_are_left_to_the_filter_of_the_user(feature, servers, sample):
    weight_versions.saw("1")
    assert filtered([started(sample, "1"), sample()]) == "the user's own answer"
