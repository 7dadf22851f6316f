"""A server that came up is asked and proved, beside the run."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

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


@pytest.fixture
def host():
    """A web server that plays router, prefill and decode server at once."""
    pages, posted = {"/get_server_info": {"cache": True}}, []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(pages.get(self.path))

        def do_POST(self):
            length = int(self.headers["Content-Length"])
            posted.append(json.loads(self.rfile.read(length)))
            self.answer({"output_ids": [5]})

        def answer(self, body):
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    worker = {"url": url, "worker_type": "prefill", "is_healthy": True, "bootstrap_port": 8998}
    pages["/workers"] = {"workers": [worker]}
    yield SimpleNamespace(url=url, pages=pages, posted=posted)
    server.shutdown()
    server.server_close()


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
