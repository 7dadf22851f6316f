"""A change that a tree has takes the bindings out that it makes needless, and says so."""

import pytest

from miles_periodic.compat.expiry import remaining, replaced, without_replaced
from miles_periodic.hooks.conditions import Replacement, condition_from
from miles_periodic.hooks.decisions import Evidence, Inject, Native

SEEN = (Evidence("sglang/srt/managers/collector.py", 1, "Collector"),)
LACKS = Inject("lacks it", SEEN, ("server/one", "server/two"))


def change(*bindings, target="sglang.srt.managers.collector:Collector", upstream="sglang"):
    return Replacement("sglang#1", upstream, condition_from([{"defines": target}]), bindings)


def test_without_a_change_in_the_tree_the_decision_stays(made_tree):
    missing = change("server/one", target="sglang.srt.gone:f")
    assert without_replaced(LACKS, [missing], made_tree()) is LACKS


def test_a_binding_that_a_change_replaces_is_left_out_with_its_reason(made_tree):
    decision = without_replaced(LACKS, [change("server/one", "server/other")], made_tree())
    assert decision.bindings == ("server/two",)
    assert decision.reason == "lacks it; sglang#1 is in this tree: without server/one"
    assert decision.evidence[-1].what == "Collector is defined"


def test_a_feature_of_which_nothing_is_left_to_inject_is_native(made_tree):
    decision = without_replaced(LACKS, [change("server/one", "server/two")], made_tree())
    assert isinstance(decision, Native)
    assert "sglang#1 is in this tree: without server/one, server/two" in decision.reason


def test_the_muster_alone_is_no_injection(made_tree):
    decision = Inject("lacks it", SEEN, ("rollout/one", "launch/muster"))
    tree = made_tree()
    tree.upstream = "miles"
    here = Replacement(
        "miles#1", "miles", condition_from({"not": {"defines": "miles.x:f"}}), ("rollout/one",)
    )
    assert isinstance(without_replaced(decision, [here], tree), Native)


def test_a_change_of_another_upstream_replaces_nothing(made_tree):
    assert replaced(["server/one"], [change("server/one", upstream="miles")], made_tree()) == ()


def test_a_change_is_not_judged_where_none_of_its_bindings_is_put_in(made_tree):
    (made_tree().portions[0] / "srt/managers/collector.py").write_text("class (")
    tree = made_tree({"srt/managers/collector.py": "class (\n"})
    assert remaining(["server/two"], [change("server/one")], tree) == ("server/two",)


@pytest.mark.parametrize(
    ("named", "left"), [(("server/one",), ("server/two",)), ((), ("server/one", "server/two"))]
)
def test_what_remains_is_what_no_change_replaces(made_tree, named, left):
    assert remaining(["server/one", "server/two"], [change(*named)], made_tree()) == left
