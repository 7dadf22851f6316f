"""A real SGLang with one hunk taken out, renamed or mislabelled: the decision follows the code."""

from __future__ import annotations

import shutil

import pytest

from miles_periodic.compat.plan import make_plan
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.decisions import Inject, Native, Unsupported
from miles_periodic.plugins import features

PARTS = ("managers", "state_capturer", "mem_cache", "server_args.py", "model_executor")
MANAGERS = "srt/managers"
COLLECTOR = f"{MANAGERS}/scheduler_output_processor_mixin.py"
ALIGN = "server/align-mixed-batches"
FIELD = "routed_experts_start_len"
KEYWORD = f"{FIELD}=recv_req.{FIELD},"


@pytest.fixture(scope="module")
def server(unpacked, tmp_path_factory):
    """The parts of SGLang 0.5.12 that the probes read, copied once."""
    folder = tmp_path_factory.mktemp("server") / "sglang" / "srt"
    source = unpacked("sglang", "0.5.12", "3.11") / "sglang" / "srt"
    for part in PARTS:
        copy = shutil.copytree if (source / part).is_dir() else shutil.copy2
        folder.mkdir(parents=True, exist_ok=True)
        copy(source / part, folder / part)
    return folder.parent


@pytest.fixture
def probed(server):
    """Probe with texts replaced, then put the files back."""
    originals = {}

    def probe(slug, *changes):
        for path, old, new in changes:
            file = server / path
            text = file.read_text()
            originals.setdefault(file, text)
            assert old in text, f"{path} has no {old!r}"
            file.write_text(text.replace(old, new))
        trees = {"sglang": Tree.at("sglang", server)}
        return make_plan(features(), [slug], trees, environment={}).rows_of(slug)[0].decision

    yield probe
    for file, text in originals.items():
        file.write_text(text)


def shown(decision):
    return "\n".join(map(str, decision.evidence))


def serves_a_delta(decision):
    return isinstance(decision, Native | Inject) and "declared and consumed" in decision.reason


def test_whole_it_serves_a_delta(probed):
    decision = probed("delta-router-replay")
    assert serves_a_delta(decision)
    assert ALIGN in decision.bindings


def test_a_server_that_gives_every_request_its_place_is_not_aligned(probed):
    silent = "                if req.return_routed_experts:\n                    if routed_experts"
    always = silent.replace("req.return_routed_experts", "True")
    decision = probed("delta-router-replay", (COLLECTOR, silent, always))
    assert serves_a_delta(decision)
    assert ALIGN not in decision.bindings


def test_a_collector_of_unknown_shape_is_served_without_what_is_only_offered(probed):
    decision = probed(
        "delta-router-replay", (COLLECTOR, "max(0, req.seqlen - 1 - start_len)", "req.seqlen - 1")
    )
    assert serves_a_delta(decision)
    assert "without keep_rows_on_retraction: no known shape of" in decision.reason
    assert "server/check-capture-buffer" in decision.bindings


GAPS = {
    "tokenizer": (
        (f"{MANAGERS}/tokenizer_manager.py", f"{FIELD}=obj.{FIELD},", ""),
        "nothing consumes GenerateReqInput",
    ),
    "scheduler": (
        (f"{MANAGERS}/scheduler.py", KEYWORD, ""),
        "nothing consumes TokenizedGenerateReqInput",
    ),
    "request": (
        (f"{MANAGERS}/schedule_batch.py", f"self.{FIELD} = {FIELD}", "pass"),
        "in Req.__init__",
    ),
    "collector's read": (
        (COLLECTOR, f"req.{FIELD}", "req.nothing_of_it"),
        "nothing consumes Req.routed_experts_start_len",
    ),
    "collector's argument": (
        (COLLECTOR, "            start_len=start_len,\n", ""),
        "maybe_collect_routed_experts",
    ),
    "slice": (
        ("srt/state_capturer/base.py", "[start_len : seqlen - 1]", "[: seqlen - 1]"),
        "start_len in BaseTopkCapturer.get_topk",
    ),
}


@pytest.mark.parametrize(("change", "gap"), GAPS.values(), ids=GAPS)
def test_one_hunk_missing_is_unsupported_and_the_gap_is_named(probed, change, gap):
    decision = probed("delta-router-replay", change)
    assert isinstance(decision, Unsupported)
    assert gap in decision.reason
    assert decision.remedy.startswith("Use ")


def test_a_field_kept_under_another_name_is_native_and_the_name_is_shown(probed):
    decision = probed(
        "delta-router-replay",
        (f"{MANAGERS}/schedule_batch.py", f"self.{FIELD} = {FIELD}", f"self.first_row = {FIELD}"),
        (COLLECTOR, f"req.{FIELD}", "req.first_row"),
    )
    assert serves_a_delta(decision), decision.reason
    assert "Req.__init__ sets self.first_row" in shown(decision)


def test_a_lying_version_changes_nothing(probed, server):
    (server / "version.py").write_text('__version__ = "0.5.9"\n')
    assert serves_a_delta(probed("delta-router-replay"))


def test_routes_that_are_never_returned_are_unsupported(probed):
    flag = "enable_return_routed_experts"
    decision = probed(
        "delta-router-replay", ("srt/model_executor/model_runner.py", f".{flag}", ".other")
    )
    assert isinstance(decision, Unsupported)
    assert flag in decision.target


def test_a_salt_that_the_scheduler_drops_is_unsupported(probed):
    change = (f"{MANAGERS}/scheduler.py", "extra_key=recv_req.extra_key,", "")
    decision = probed("kv-preservation", change)
    assert isinstance(decision, Unsupported)
    assert "Req.extra_key exists, but nothing gives it the value" in shown(decision)


def test_a_pause_that_does_not_tell_in_place_apart_is_unsupported(probed):
    change = (f"{MANAGERS}/scheduler.py", 'mode == "in_place"', 'mode == "other"')
    decision = probed("kv-preservation", change)
    assert isinstance(decision, Unsupported)
    assert "nothing tells in_place apart" in decision.reason
