"""The probe on small trees: a rank that nothing takes is none, and a router is found or named."""

import pytest

from miles_periodic.compat.probes import PROBES
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks import Inject, Native, Unsupported

LOADS = {
    "srt/entrypoints/loads.py": """
        @router.get("/v1/loads")
        async def get_loads():
            return []
        """
}
TAKES = """
    class DataParallelController:
        def route(self, req: Req):
            return self.workers[req.start_row]
    """


@pytest.fixture
def probed(made_tree):
    """Probe the small server, changed, with its field under the real name."""

    def probe(changes=None, field="routed_dp_rank"):
        tree = made_tree({**LOADS, "srt/managers/collector.py": TAKES, **(changes or {})})
        for path in tree.portions[0].rglob("*.py"):
            path.write_text(path.read_text().replace("start_row", field))
        return PROBES["request-routing"]["sglang"](tree)

    return probe


@pytest.mark.parametrize("field", ["routed_dp_rank", "data_parallel_rank"])
def test_a_rank_that_the_controller_takes_is_native_under_either_name(probed, field):
    decision = probed(field=field)
    assert isinstance(decision, Native)
    assert f"self.workers[req.{field}]" in decision.evidence[-2].what
    assert decision.evidence[-1].what == "get_loads serves /v1/loads"


def test_a_rank_that_is_declared_and_carried_and_never_taken_is_unsupported(probed):
    decision = probed({"srt/managers/collector.py": ""})
    assert isinstance(decision, Unsupported)
    assert decision.remedy.startswith("Use an SGLang tree")


def test_a_server_that_does_not_tell_its_load_is_unsupported(probed):
    decision = probed({"srt/entrypoints/loads.py": "LOADS = '/v1/loads'\n"})
    assert isinstance(decision, Unsupported)
    assert "/v1/loads" in decision.found


def test_an_older_path_of_the_load_will_do(probed):
    old = """
        @app.get("/get_load")
        async def get_load():
            return []
        """
    assert isinstance(probed({"srt/entrypoints/loads.py": old}), Native)


ROUTER = """
class MilesRouter:
    def _use_url(self):
        return min(self.worker_request_counts, key=self.worker_request_counts.get)
"""
KEYS = """
def headers(args, sample):
    if args.sglang_router_policy == "consistent_hashing":
        return {"X-SMG-Routing-Key": sample.session_id}

def chat(session_id):
    def send():
        return {"X-SMG-Routing-Key": session_id}
    return send()
"""


def miles(tmp_path, **files):
    for path, text in files.items():
        file = tmp_path / "miles" / f"{path.replace('__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return PROBES["request-routing"]["miles"](Tree.at("miles", tmp_path))


def test_a_router_that_counts_open_requests_is_bound_and_who_sends_keys_is_named(tmp_path):
    decision = miles(tmp_path, router__router=ROUTER, rollout__keys=KEYS)
    assert isinstance(decision, Inject)
    choice, some, every = [e.what for e in decision.evidence]
    assert choice == "MilesRouter._use_url looks at worker_request_counts"
    assert some.startswith("headers sends a key under some of --sglang-router-policy")
    assert every == "chat.send sends a key under every policy"


def test_what_the_rust_router_cannot_have_is_said(tmp_path):
    reason = miles(tmp_path, router__router=ROUTER).reason
    assert "--use-miles-router" in reason and "Rust router only sticky keys" in reason


def test_a_router_that_is_not_there_is_unsupported(tmp_path):
    decision = miles(tmp_path, router__router="")
    assert isinstance(decision, Unsupported)
    assert decision.target == "miles.router.router:MilesRouter._use_url"
