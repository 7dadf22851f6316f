"""Feature x upstream to decisions: shapes, drift, missing trees, and what stops a launch."""

import json

import pytest

from miles_periodic.compat import catalog as catalog_module
from miles_periodic.compat import decide as decide_module
from miles_periodic.compat import drift, fingerprints, patched
from miles_periodic.compat.binding import Binding
from miles_periodic.compat.catalog import every_name
from miles_periodic.compat.fingerprints import Fingerprint, KnownShape, fingerprint_of
from miles_periodic.compat.plan import make_plan, trees_from
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks import (
    Evidence,
    Feature,
    Inject,
    Native,
    Off,
    PeriodicError,
    Unsupported,
    hookimpl,
)
from miles_periodic.hooks.binding_points import point
from miles_periodic.hooks.feature import FeatureSettings
from miles_periodic.hooks.manager import build_manager

TARGET = "miles.loop:Loop.turn"
BODY = "class Loop:\n    def turn(self, tokens):\n        return tokens\n"


class Shorten(Feature):
    slug = "shorten"


class Lengthen(Feature):
    slug = "lengthen"


class Far(FeatureSettings):
    far: bool | None = False


@pytest.fixture(autouse=True)
def catalog(monkeypatch):
    """One binding, which `shorten` injects into Miles; all else is native."""
    seen = (Evidence("miles/loop.py", 2, "Loop.turn"),)
    binding = Binding("rollout/turn", "miles", TARGET, "adapter:turn")
    for room in (drift, patched):
        monkeypatch.setattr(room, "BINDINGS", {binding.name: binding})
    probes = {
        "shorten": {
            "sglang": lambda tree: Native("has it", seen),
            "miles": lambda tree: Inject("lacks it", seen, (binding.name,)),
        },
        "lengthen": {"miles": lambda tree: Native("has it", seen)},
    }
    monkeypatch.setattr(decide_module, "PROBES", probes)


@pytest.fixture
def miles(tmp_path):
    def tree(text=BODY):
        folder = tmp_path / "miles"
        folder.mkdir(exist_ok=True)
        (folder / "loop.py").write_text(text)
        return Tree.at("miles", tmp_path)

    return tree


@pytest.fixture
def sglang(tmp_path):
    (tmp_path / "sglang" / "srt").mkdir(parents=True)
    return Tree.at("sglang", tmp_path)


@pytest.fixture(autouse=True)
def known(monkeypatch, miles):
    shape = fingerprint_of(miles().find(TARGET)[1])
    shapes = {TARGET: (KnownShape("release-1", shape),)}
    monkeypatch.setattr(fingerprints, "known_shapes", lambda: shapes)
    return shapes


def decide(tree, slug="shorten", upstream="miles", **options):
    made = make_plan([Shorten, Lengthen], [slug], {upstream: tree}, environment={}, **options)
    return next(r.decision for r in made.rows_of(slug) if r.upstream == upstream)


def test_a_known_shape_is_injected(miles):
    assert decide(miles()) == Inject(
        "lacks it", (Evidence("miles/loop.py", 2, "Loop.turn"),), ("rollout/turn",)
    )


@pytest.mark.parametrize(
    "text",
    [
        BODY.replace("        return", "        # a comment\n\n        return"),
        BODY.replace("        return", '        """Say what it does."""\n        return'),
    ],
)
def test_comments_and_docstrings_are_no_drift(miles, text):
    assert isinstance(decide(miles(text)), Inject)


def test_an_unknown_body_is_refused_and_names_the_way_out(miles):
    decision = decide(miles(BODY.replace("return tokens", "return tokens[1:]")))
    assert isinstance(decision, Unsupported)
    assert decision.target == TARGET
    assert "(self, tokens)" in decision.expected and "release-1" in decision.expected
    assert decision.found.startswith("(self, tokens) ")
    assert decision.remedy.endswith("read the change and give --accept-drift shorten.")


def test_an_unknown_signature_is_refused_without_recommending_to_accept_the_drift(miles):
    decision = decide(miles(BODY.replace("tokens)", "tokens, rows)")))
    assert isinstance(decision, Unsupported)
    assert decision.found.startswith("(self, tokens, rows) ")
    assert "--accept-drift" not in decision.remedy


def test_accepted_drift_is_injected_and_recorded(miles):
    tree = miles(BODY.replace("return tokens", "return tokens[1:]"))
    decision = decide(tree, accept_drift=["shorten"])
    assert isinstance(decision, Inject)
    assert f"drift accepted on request: {TARGET} (self, tokens)" in decision.reason


def test_a_missing_target_is_refused_even_with_drift_accepted(miles):
    decision = decide(miles("class Loop:\n    pass\n"), accept_drift=["shorten"])
    assert isinstance(decision, Unsupported)
    assert decision.found == "no such definition"
    assert decision.remedy == "Use a tree that has it: release-1."


def test_a_target_without_any_recorded_shape_is_refused(miles, known):
    known.clear()
    decision = decide(miles())
    assert isinstance(decision, Unsupported)
    assert "none recorded" in decision.remedy


def test_an_upstream_that_is_not_there_is_refused_with_what_to_install(miles):
    made = make_plan([Shorten], ["shorten"], {"miles": miles()}, environment={})
    decision = made.rows_of("shorten")[0].decision
    assert (made.rows[0].upstream, decision.reason) == ("sglang", "sglang is not installed")
    assert "Install miles-rl 0.0.2 or sglang" in decision.remedy


def test_a_feature_that_is_off_is_off_everywhere_and_no_problem(miles):
    made = make_plan([Shorten, Lengthen], ["lengthen"], {"miles": miles()}, environment={})
    assert {type(row.decision) for row in made.rows_of("shorten")} == {Off}
    assert made.problems() == []


def test_problems_name_feature_tree_target_and_remedy(miles):
    tree = miles("")
    made = make_plan([Shorten], ["shorten"], {"miles": tree}, environment={})
    missing, drift = made.problems()
    assert missing.parts["tree"] == "not installed"
    assert drift.parts["feature"] == "shorten"
    assert drift.parts["tree"] == tree.name
    assert drift.parts["target"] == TARGET
    assert "--allow-missing shorten starts without" in drift.parts["remedy"]


def test_a_feature_that_may_be_missing_is_dropped_instead(miles):
    made = make_plan(
        [Shorten, Lengthen],
        ["shorten", "lengthen"],
        {"miles": miles("")},
        allow_missing=["shorten", "lengthen"],
        environment={},
    )
    assert made.problems() == []
    assert made.dropped() == ("shorten",)


def test_one_features_failure_is_no_problem_of_another(miles, sglang):
    trees = {"miles": miles(""), "sglang": sglang}
    made = make_plan([Shorten, Lengthen], ["shorten", "lengthen"], trees, environment={})
    assert {error.parts["feature"] for error in made.problems()} == {"shorten"}


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"on": ["shortn"]}, "Write 'shorten'"),
        ({"on": ["shorten"], "accept_drift": ["lengthn"]}, "Write 'lengthen'"),
    ],
)
def test_a_name_that_matches_nothing_is_an_error(options, remedy):
    with pytest.raises(PeriodicError) as error:
        make_plan([Shorten, Lengthen], trees={}, environment={}, **options)
    assert remedy in error.value.parts["remedy"]


def test_the_json_has_the_keys_of_schema_1(miles, sglang):
    trees = {"miles": miles(), "sglang": sglang}
    made = make_plan([Shorten], ["shorten"], trees, environment={"python": {"present": True}})
    printed = json.loads(json.dumps(made.to_json()))
    assert set(printed) == {"schema", "environment", "features"}
    assert printed["schema"] == 1
    assert set(printed["environment"]) == {"python", "trees"}
    (feature,) = printed["features"]
    assert feature["feature"] == "shorten"
    assert [d["upstream"] for d in feature["decisions"]] == ["sglang", "miles"]
    assert [d["decision"] for d in feature["decisions"]] == ["native", "inject"]
    assert feature["decisions"][1]["bindings"] == ["rollout/turn"]
    assert feature["decisions"][1]["in_sources"] == []
    for decision in feature["decisions"]:
        assert {"upstream", "decision", "reason", "evidence"} <= set(decision)
        assert decision["evidence"] == [{"path": "miles/loop.py", "line": 2, "what": "Loop.turn"}]


def test_what_is_patched_into_the_sources_is_told_apart_and_is_no_drift(miles):
    tree = miles(BODY + point("shorten", ["rollout/turn"]))
    (row,) = make_plan([Lengthen, Shorten], ["shorten"], {"miles": tree}).rows_of("shorten")[1:]
    assert row.decision.bindings == row.decision.in_sources == ("rollout/turn",)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (["sglang"], "Write it as --tree sglang=DIR."),
        (["sglang="], "Write it as --tree sglang=DIR."),
        (["=there"], "Write it as --tree sglang=DIR."),
        (["sglnag=."], "Write 'sglang' instead of 'sglnag'."),
        (["miles=no/such/folder"], "Give --tree miles=DIR the package folder"),
    ],
)
def test_a_wrong_tree_option_says_what_to_write(options, remedy):
    with pytest.raises(PeriodicError) as error:
        trees_from(options)
    assert remedy in error.value.parts["remedy"]


def test_a_tree_given_twice_is_an_error(miles):
    folder = miles().portions[0]
    with pytest.raises(PeriodicError, match="Give one folder for miles"):
        trees_from([f"miles={folder}", f"miles={folder}"])


@pytest.mark.parametrize("inner", ["", "miles"])
def test_a_tree_is_the_package_folder_or_the_one_that_holds_it(miles, tmp_path, inner, monkeypatch):
    miles()
    monkeypatch.setattr(Tree, "installed", lambda upstream, before=None: None)
    trees = trees_from([f"miles={tmp_path / inner}"])
    assert list(trees) == ["miles"]
    assert trees["miles"].portions == (tmp_path / "miles",)


def test_the_other_upstreams_are_the_installed_ones(miles, sglang, tmp_path, monkeypatch):
    installed = {"sglang": sglang, "megatron": None, "miles": None}
    monkeypatch.setattr(Tree, "installed", installed.get)
    miles()
    assert list(trees_from([f"miles={tmp_path}"])) == ["sglang", "miles"]


def test_a_shape_is_its_signature_and_content(miles):
    shape = fingerprint_of(miles().find(TARGET)[1])
    assert shape.signature == "(self, tokens)"
    assert shape != Fingerprint("(self, tokens)", "0" * 32)


def test_a_source_that_cannot_be_read_takes_down_its_own_row_only(miles):
    tree = miles("def broken(:\n")
    decision = decide(tree)
    assert isinstance(decision, Unsupported) and decision.target == "miles/loop.py:1"
    assert isinstance(decide(tree, slug="lengthen"), Native)


class Strange(Feature):
    slug = "strange"

    @hookimpl
    def complete_arguments(self, arguments):
        return None


class Idle(Feature):
    slug = "idle"


def decide_for(feature, tree, monkeypatch):
    monkeypatch.setattr(decide_module, "HOOK_BINDINGS", {"complete_arguments": ("rollout/turn",)})
    monkeypatch.setattr(decide_module, "names_for_hooks", lambda hooks, tree: ("rollout/turn",))
    made = make_plan([feature], [feature.slug], {"miles": tree}, environment={})
    (row,) = made.rows
    return row.decision


def test_a_feature_of_somebody_else_gets_the_bindings_that_its_hooks_need(miles, monkeypatch):
    decision = decide_for(Strange, miles(), monkeypatch)
    assert decision == Inject("implements complete_arguments", (), ("rollout/turn",))


def test_a_feature_of_somebody_else_meets_known_shapes_only(miles, monkeypatch):
    changed = miles(BODY.replace("return tokens", "return []"))
    assert isinstance(decide_for(Strange, changed, monkeypatch), Unsupported)


def test_a_feature_without_a_hook_is_refused_because_it_would_do_nothing(miles, monkeypatch):
    decision = decide_for(Idle, miles(), monkeypatch)
    assert isinstance(decision, Unsupported) and "it would do nothing" in decision.reason


def test_every_hook_has_bindings_through_which_it_is_called():
    specs = {hook for hook in vars(build_manager([]).hook) if not hook.startswith("_")}
    assert specs == set(catalog_module.HOOK_BINDINGS)
    named = {n for needs in catalog_module.HOOK_BINDINGS.values() for n in every_name(needs)}
    assert named <= set(catalog_module.BINDINGS)


@pytest.fixture
def offered(miles, monkeypatch):
    """The decision where the setting `far` is left open, and needs one binding."""

    def decided(text=BODY):
        names = {"far": ("rollout/turn",)}
        monkeypatch.setattr(
            decide_module,
            "names_for_settings",
            lambda s, u, on, t: tuple(n for k in on for n in names[k]),
        )
        return decide(miles(text), "lengthen", settings={"lengthen": Far(far=None)})

    return decided


def test_a_setting_that_is_left_open_is_put_in_where_its_shapes_are_known(offered):
    assert offered().bindings == ("rollout/turn",)


def test_a_setting_that_is_left_open_is_left_out_by_name_where_a_shape_is_unknown(offered):
    decision = offered(BODY.replace("return tokens", "return tokens[1:]"))
    assert isinstance(decision, Native)
    assert f"without far: no known shape of {TARGET}" in decision.reason


def test_a_setting_that_is_on_turns_native_into_its_own_bindings(miles, monkeypatch):
    needed = {("lengthen", "miles", "far"): ("rollout/turn",)}

    def names(slug, upstream, settings_on, tree):
        return tuple(n for s in settings_on for n in needed.get((slug, upstream, s), ()))

    monkeypatch.setattr(decide_module, "names_for_settings", names)
    assert isinstance(decide(miles(), "lengthen"), Native)
    on = decide(miles(), "lengthen", settings={"lengthen": Far(far=True)})
    assert on.bindings == ("rollout/turn",) and on.evidence
    off = decide(miles(), "lengthen", settings={"lengthen": Far()})
    assert isinstance(off, Native)


def test_a_feature_that_cannot_be_had_is_off_where_the_run_has_nothing_for_it(sglang, miles):
    broken = miles("class Other:\n    pass\n")
    made = make_plan(
        [Shorten], ["shorten"], {"miles": broken}, environment={}, idle={"shorten": "no work"}
    )
    assert made.problems() == []
    assert made.off("shorten").startswith("no work; besides, ")


def test_a_feature_that_can_be_had_stays_on_where_the_run_seems_to_have_nothing_for_it(
    sglang, miles
):
    trees = {"miles": miles(), "sglang": sglang}
    made = make_plan([Shorten], ["shorten"], trees, environment={}, idle={"shorten": "no work"})
    assert made.off("shorten") == ""
