"""The server's probe on small trees: the field itself decides, whatever else is there."""

import pytest

from miles_periodic.compat.probes import PROBES
from miles_periodic.hooks import Inject, Native, Unsupported

FIELD = "routed_experts_start_len"
SWITCH = {
    "srt/server_args.py": "class ServerArgs:\n    enable_return_routed_experts: bool = False\n",
}


@pytest.fixture
def probed(made_tree):
    """Probe the small server with its field under the real name, changed."""

    def probe(changes=None):
        tree = made_tree(changes)
        for path in tree.portions[0].rglob("*.py"):
            path.write_text(path.read_text().replace("start_row", FIELD))
        return PROBES["delta-router-replay"]["sglang"](tree)

    return probe


def test_a_field_that_is_consumed_is_native(probed):
    decision = probed()
    assert isinstance(decision, Native)
    assert any(e.path.endswith("collector.py") for e in decision.evidence)


def test_a_field_that_nothing_reads_is_left_to_the_bindings(probed):
    decision = probed({"srt/managers/tokenizer_manager.py": ""})
    assert isinstance(decision, Inject)
    assert decision.bindings


def test_a_field_that_goes_half_of_the_way_is_unsupported(probed):
    decision = probed({"srt/managers/collector.py": ""})
    assert isinstance(decision, Unsupported)
    assert "nothing consumes Req" in decision.found


def test_a_field_that_is_not_declared_is_unsupported(probed):
    decision = probed({"srt/managers/io_struct.py": "class GenerateReqInput:\n    text: str\n"})
    assert isinstance(decision, Unsupported)
    assert decision.reason.startswith(f"{FIELD} is not declared")


def test_a_switch_that_nothing_reads_is_unsupported(probed):
    decision = probed(SWITCH)
    assert isinstance(decision, Unsupported)
    assert decision.target == "ServerArgs.enable_return_routed_experts"


STREAMED = """
class Output:
    def stream(self, reqs):
        routed_experts = []
        for req in reqs:
            {condition}
                routed_experts.append(req.routed_experts)
"""


@pytest.mark.parametrize(
    ("condition", "is_fault"),
    [("if req.return_routed_experts:", True), ("if self.return_routed_experts:", False)],
)
def test_routes_that_are_listed_for_some_requests_only_are_aligned(probed, condition, is_fault):
    decision = probed({"srt/managers/output.py": STREAMED.format(condition=condition)})
    assert isinstance(decision, Inject if is_fault else Native)
    if is_fault:
        assert decision.bindings == ("server/align-mixed-batches",)
        assert "Output.stream lists routes only of requests" in decision.reason


CAPTURED = """
class BaseTopkCapturer:
    def on_forward_end(self, batch, no_copy_to_cpu):
        rows = self.device_cache.buffer[: batch.size]
        return TopkCaptureOutput(topk=rows{copied})
"""
COPIED = """
class Scheduler:
    def handle(self, recv_req: TokenizedGenerateReqInput):
        req = Req(recv_req.text, start_row=recv_req.start_row)
        self.queue.append(req)

    def run_batch(self, result):
        with {stream}:
            result.copy_to_cpu(return_logprob=True)
"""


@pytest.mark.parametrize(
    ("copied", "stream", "is_fault"),
    [
        ("", "self.copy_stream_ctx", True),
        (".clone()", "self.copy_stream_ctx", False),
        ("", "self.forward_stream_ctx", False),
    ],
)
def test_captured_routes_that_the_next_forward_can_overtake_are_cloned(
    probed, copied, stream, is_fault
):
    decision = probed(
        {
            "srt/state_capturer/base.py": CAPTURED.format(copied=copied),
            "srt/managers/scheduler.py": COPIED.format(stream=stream),
        }
    )
    assert isinstance(decision, Inject if is_fault else Native)
    if is_fault:
        assert decision.bindings == ("server/own-captured-rows",)
