"""The probe on small trees: what follows a save, and how it gets at the model."""

import textwrap

import pytest

from miles_periodic.compat.probes import PROBES
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks import Inject, Unsupported

ACTOR = """
    class MegatronTrainRayActor:
        def save_model(self, rollout_id):
            save(rollout_id, self.model)
            if self.args.save_hf is not None:
                save_hf_model(self.args, rollout_id, self.model)
    """
EXPORT = """
    def save_hf_model(args, rollout_id, model):
        bridge.save_hf_pretrained(model, path=path)
    """
DIRECT = """
    def save_hf_model(args, rollout_id, model, *, path=None):
        export_hf_model_direct(args, model, path)
    """
ROOM = "backends/megatron_utils"


@pytest.fixture
def probed(tmp_path):
    """Probe a small Miles of those files of its trainer."""

    def probe(**sources):
        for name, text in sources.items():
            file = tmp_path / "miles" / ROOM / f"{name}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(textwrap.dedent(text))
        return PROBES["fast-resharding"]["miles"](Tree.at("miles", tmp_path))

    return probe


def test_an_export_through_the_bridge_is_injected_into(probed):
    decision = probed(actor=ACTOR, model=EXPORT)
    assert isinstance(decision, Inject)
    assert [e.what for e in decision.evidence] == [
        "a trainer saves",
        "and exports what it saved",
        "the export calls save_hf_pretrained",
    ]
    assert "checkpoint/export" in decision.bindings


def test_an_export_in_a_module_of_its_own_is_bound_there(probed):
    decision = probed(actor=ACTOR, hf_export=DIRECT)
    assert decision.evidence[-1].what == "the export calls export_hf_model_direct"
    assert "checkpoint/main-export" in decision.bindings


def test_an_export_that_does_not_follow_a_save_is_not_taken(probed):
    before = ACTOR.replace("            save(rollout_id, self.model)\n", "")
    decision = probed(actor=before, model=EXPORT)
    assert isinstance(decision, Unsupported) and "follows a save" in decision.found


def test_an_export_that_gathers_in_another_way_is_not_taken(probed):
    decision = probed(actor=ACTOR, model=EXPORT.replace("save_hf_pretrained", "write"))
    assert isinstance(decision, Unsupported) and "gathering" in decision.found


def test_a_miles_without_an_export_is_not_taken(probed):
    decision = probed(actor=ACTOR)
    assert isinstance(decision, Unsupported) and "miles reshard" in decision.remedy
