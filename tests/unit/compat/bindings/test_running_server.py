"""A server that came up is asked and proved, beside the run."""

from types import SimpleNamespace

import pytest
from json_server import JsonServer

from miles_periodic.compat.bindings import running_server
from miles_periodic.hooks import Feature, PeriodicError, hookimpl
from miles_periodic.hooks.manager import build_manager
from miles_periodic.hooks.values import ServerGroup


class Checked(Feature):
    slug = "checked"
    why = "Checks."
    exit = "Never."

    def __init__(self):
        super().__init__()
        self.problem, self.seen = None, []

    @hookimpl
    def check_running_server(self, servers, report, generate):
        self.seen.append((servers.role, report, generate({"input_ids": [1]})))
        if self.problem:
            raise PeriodicError(self.problem)


class Host(JsonServer):
    """A web server that plays router, prefill and decode server at once."""

    def __init__(self):
        self.pages, self.posted = {"/get_server_info": {"cache": True}}, []
        super().__init__()
        worker = {"url": self.url, "worker_type": "prefill", "is_healthy": True}
        self.pages["/workers"] = {"workers": [{**worker, "bootstrap_port": 8998}]}

    def get(self, path):
        return self.pages.get(path)

    def post(self, path, body):
        self.posted.append(body)
        return {"output_ids": [5]}


@pytest.fixture
def host():
    with Host() as started:
        yield started


@pytest.fixture
def run(monkeypatch):
    made = SimpleNamespace(feature=Checked(), notices=[], failures=[])
    manager = build_manager([made.feature])
    member = SimpleNamespace(
        notice=made.notices.append, report_failure=lambda name, why: made.failures.append(name)
    )
    monkeypatch.setattr(running_server, "manager", lambda: manager)
    monkeypatch.setattr(running_server, "member", lambda: member)
    return made


def checked(host, role, url=None):
    server = running_server.RunningServer(url or host.url, host.url, ServerGroup(role, {}))
    running_server._check(server)


def test_a_decode_server_is_proved_together_with_a_prefill_server(host, run):
    checked(host, "decode")
    assert run.feature.seen == [("decode", {"cache": True}, {"output_ids": [5]})]
    first, second = host.posted
    assert first == second
    assert (first["bootstrap_host"], first["bootstrap_port"]) == ("127.0.0.1", 8998)
    assert first["bootstrap_room"] >= 0
    assert (run.notices, run.failures) == ([], [])


def test_a_regular_server_is_asked_alone(host, run):
    checked(host, "regular")
    assert host.posted == [{"input_ids": [1]}]


def test_the_newer_page_is_preferred(host, run):
    host.pages["/server_info"] = {"cache": "newer"}
    checked(host, "regular")
    assert run.feature.seen[0][1] == {"cache": "newer"}


def test_a_server_that_does_not_do_it_ends_the_run(host, run):
    run.feature.problem = "It does not."
    checked(host, "decode")
    assert run.failures == [f"checked: {host.url}"]


def test_a_server_that_cannot_be_asked_is_reported_and_the_run_goes_on(host, run):
    del host.pages["/get_server_info"]
    checked(host, "decode")
    assert "does not say what it runs with" in run.notices[0]
    assert run.failures == []


def test_only_the_process_that_serves_http_is_asked(run):
    instance = SimpleNamespace(node_rank=1)
    assert running_server.check(lambda arguments: "up", instance, ({},), {}) == "up"
    assert run.feature.seen == []
