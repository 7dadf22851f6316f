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
