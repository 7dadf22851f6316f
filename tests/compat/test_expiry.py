"""A real SGLang into which a pull request was merged: what stood in for it turns itself off."""

from __future__ import annotations

import shutil

import pytest

from miles_periodic.compat.plan import make_plan
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.decisions import Inject
from miles_periodic.plugins import features
from miles_periodic.plugins.delta_router_replay.settings import DeltaRouterReplaySettings
from miles_periodic.upstream.rows import ledger, replacements

SLUG = "delta-router-replay"
PARTS = ("managers", "state_capturer", "server_args.py", "arg_groups", "model_executor")
WIRE = "srt/state_capturer/routed_experts.py"
BATCH = "srt/managers/schedule_batch.py"
RELEASE = "\ndef release_req(\n"


@pytest.fixture(scope="module")
def server(unpacked, tmp_path_factory):
    """The parts of SGLang 0.5.23 that the probes read, copied once."""
    folder = tmp_path_factory.mktemp("server") / "sglang" / "srt"
    source = unpacked("sglang", "0.5.23", "3.11") / "sglang" / "srt"
    folder.mkdir(parents=True)
    for part in PARTS:
        copy = shutil.copytree if (source / part).is_dir() else shutil.copy2
        copy(source / part, folder / part)
    return folder.parent


@pytest.fixture
def planned(server):
    """Plan with a text put into one file, then take it out again."""
    file, text = None, ""

    def plan(path=None, change=lambda text: text):
        nonlocal file, text
        if path:
            file = server / path
            text = file.read_text()
            file.write_text(change(text))
            assert file.read_text() != text
        trees = {"sglang": Tree.at("sglang", server)}
        made = make_plan(
            features(),
            [SLUG],
            trees,
            environment={},
            settings={SLUG: DeltaRouterReplaySettings(compact_wire=True)},
            replacements=replacements(),
        )
        return made.rows_of(SLUG)[0].decision

    yield plan
    if file:
        file.write_text(text)


def test_as_released_it_puts_in_what_upstream_has_not_and_nothing_that_it_has(planned):
    decision = planned()
    assert isinstance(decision, Inject)
    assert {"server/keep-rows", "server/encode-rows"} <= set(decision.bindings)
    for key in ("sglang#24851", "sglang/aligned-routes", "sglang/own-captured-rows"):
        assert not set(ledger()[key].replaces) & set(decision.bindings)


def test_with_the_compact_wire_merged_our_encoder_turns_itself_off_and_says_so(planned):
    merged = "\n\ndef encode_routed_experts_for_wire(rows, dtype):\n    return rows.to(dtype)\n"
    decision = planned(WIRE, lambda text: text + merged)
    assert "server/encode-rows" not in decision.bindings
    assert "server/keep-rows" in decision.bindings
    assert "sglang#31219 is in this tree: without server/encode-rows" in decision.reason
    assert any(e.what == "encode_routed_experts_for_wire is defined" for e in decision.evidence)


def test_a_merged_change_in_a_target_is_no_unknown_shape(planned):
    """The pull request changes the very function that we bind: what we lose is not missed."""

    def merge(text):
        head, opening, rest = text.partition(RELEASE)
        signature, colon, body = rest.partition(":\n")
        assert opening and colon
        return f"{head}{opening}{signature}{colon}    routed_experts = req.routed_experts\n{body}"

    decision = planned(BATCH, merge)
    assert isinstance(decision, Inject), decision.reason
    assert not {"server/keep-rows", "server/give-back-rows"} & set(decision.bindings)
    assert "sglang#24001 is in this tree" in decision.reason
    assert "without keep_rows_on_retraction" not in decision.reason
