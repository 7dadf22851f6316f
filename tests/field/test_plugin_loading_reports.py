"""Plugins and patches that did not load, were lost on the way, or took others down with them."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from miles_periodic.compat.apply import BindingError, apply_binding
from miles_periodic.compat.binding import Binding
from miles_periodic.compat.manifest import RunManifest
from miles_periodic.compat.plan import make_plan
from miles_periodic.compat.roll_call.server import RollCallServer
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.decisions import Inject, Unsupported
from miles_periodic.plugins import features

DOUBLE = Binding(
    name="toy/double",
    upstream="miles",
    target="toy_upstream:increment",
    adapter="toy_adapter:double",
    processes=("process",),
)
UPSTREAM = "def increment(x):\n    return x + 1\n"
ADAPTER = """
def double(wrapped, instance, args, kwargs):
    return 2 * wrapped(*args, **kwargs)
"""


@pytest.fixture
def toy(tmp_path):
    (tmp_path / "toy_upstream.py").write_text(UPSTREAM)
    (tmp_path / "toy_adapter.py").write_text(ADAPTER)
    return tmp_path


@pytest.fixture
def started(toy):
    """`started(code)`: a script of a run, its output, and the roll call that it was in."""
    with RollCallServer([DOUBLE], run_id="run") as roll_call:

        def start(code):
            script = toy / "script.py"
            script.write_text(textwrap.dedent(code))
            manifest = RunManifest(
                "run", roll_call.address, roll_call.token, (), bindings=(DOUBLE,)
            )
            environment = {**os.environ, **manifest.environment(), "PYTHONPATH": str(toy)}
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            with subprocess.Popen([sys.executable, script], env=environment, **pipes) as child:
                output, errors = child.communicate(timeout=240)
            roll_call.hear_out(child.pid)
            assert child.returncode == 0, errors
            return output.split(), roll_call.roll

        yield start


class TestChildrenWithoutThePlugin:
    """sglang#38464, vllm-omni#6750, vllm#27940: children come up without what the parent has."""

    @pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
    def test_a_child_is_bound_however_it_is_started_and_answers_itself(self, started, method):
        output, roll = started(
            f"""
            import multiprocessing, time

            def work(queue):
                import toy_upstream
                queue.put(toy_upstream.increment(1))
                time.sleep(2.5)

            if __name__ == "__main__":
                import toy_upstream
                context = multiprocessing.get_context("{method}")
                queue = context.Queue()
                child = context.Process(target=work, args=(queue,))
                child.start()
                print(queue.get(timeout=120), toy_upstream.increment(1))
                child.join()
            """
        )
        assert output == ["4", "4"]
        assert [row["applied"] for row in roll.rows()] == [["toy/double"]] * 2

    def test_a_child_of_a_child_is_bound_too(self, started):
        output, roll = started(
            """
            import subprocess, sys
            code = "import toy_upstream, time; print(toy_upstream.increment(1)); time.sleep(2.5)"
            inner = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
            subprocess.run([sys.executable, "-c", inner], check=True)
            """
        )
        assert output == ["4"]
        assert len(roll.rows()) == 1


class TestASetupThatRunsTwice:
    """ray#61350, ray#61473: a worker's setup hook breaks when it is entered again."""

    def test_joining_a_run_again_changes_nothing(self, started):
        output, _ = started(
            """
            from miles_periodic.compat import boot
            import toy_upstream
            boot.start()
            boot.start()
            print(toy_upstream.increment(1))
            """
        )
        assert output == ["4"]


class TestOneBrokenTarget:
    """vllm-ascend#7823, #4068, #4863: one patch without its anchor, and no model starts."""

    BROKEN = "miles/backends/megatron_utils/update_weight/update_weight_from_distributed/mixin.py"

    @pytest.fixture
    def planned(self, unpacked, tmp_path):
        source = unpacked("miles-rl", "0.0.2", "3.11") / "miles"
        shutil.copytree(source, tmp_path / "miles")
        (tmp_path / self.BROKEN).write_text("def _pause_and_prepare_engines(\n")

        def plan(**options):
            slugs = [feature.slug for feature in features() if feature.default]
            trees = {"miles": Tree.at("miles", tmp_path)}
            made = make_plan(features(), slugs, trees, environment={}, **options)
            return made, {row.feature: row.decision for row in made.rows if row.upstream == "miles"}

        return plan

    def test_only_the_feature_that_needs_it_cannot_be_had(self, planned):
        _, decisions = planned()
        assert isinstance(decisions["kv-preservation"], Unsupported)
        assert isinstance(decisions["cost-aware-packing"], Inject)
        assert isinstance(decisions["delta-router-replay"], Inject)

    def test_a_run_may_go_without_that_feature(self, planned):
        plan, _ = planned(allow_missing=["kv-preservation"])
        refused = [p for p in plan.problems() if p.parts["target"] not in ("sglang", "megatron")]
        assert refused == []


class TestAppliedOrAlreadyThereOrInConflict:
    """InferenceX#2704: a patch that fails to apply is taken for one that was applied before."""

    @pytest.fixture
    def module(self, toy, monkeypatch):
        import importlib

        monkeypatch.syspath_prepend(str(toy))
        for name in ("toy_upstream", "toy_adapter"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module("toy_upstream")

    def test_what_was_applied_before_is_told_from_what_cannot_be_applied(self, module):
        applied = apply_binding(DOUBLE, module)
        assert applied.in_place()
        with pytest.raises(BindingError, match="it was already applied"):
            apply_binding(DOUBLE, module)
        del module.increment
        with pytest.raises(BindingError, match="expected a function increment"):
            apply_binding(DOUBLE, module)
        assert not applied.in_place()


BIN = Path(sys.executable).parent


def periodic(*arguments, **environment):
    return subprocess.run(
        [BIN / "periodic", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "COLUMNS": "200", **environment},
    )


class TestAVariableThatNothingReads:
    """miles#533: a variable was renamed, and the old name is ignored without a word."""

    def test_it_is_a_warning_with_the_nearest_name(self, tmp_path):
        (tmp_path / "script.py").write_text("")
        done = periodic(
            *("--plugins", "periodic:cost-aware-packing"),
            *("--allow-missing", "cost-aware-packing", str(tmp_path / "script.py")),
            MILES_PERIODIC_RUNID="7",
        )
        assert "nothing reads the environment variable MILES_PERIODIC_RUNID" in done.stderr
        assert "'MILES_PERIODIC_RUN_ID'" in done.stderr

    def test_one_of_a_setting_that_does_not_exist_is_refused(self, tmp_path):
        done = periodic("plan", MILES_PERIODIC_SET__KV_PRESERVATION__SALTS="false")
        assert done.returncode == 2
        assert "Write 'salt' instead of 'salts'" in done.stderr


class TestABrokenPlugin:
    """llm#1351: one installed plugin that cannot be imported breaks the whole tool."""

    @pytest.fixture
    def broken(self, tmp_path):
        (tmp_path / "acme_plugin.py").write_text("import not_there\n")
        info = tmp_path / "acme-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            "[miles_periodic.features]\nacme = acme_plugin:features\n"
        )
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        return lambda *arguments: periodic(*arguments, PYTHONPATH=path)

    def test_who_does_not_ask_for_it_does_not_notice(self, broken):
        done = broken("plan", "--plugins", "periodic:cost-aware-packing", "--json")
        assert done.returncode == 0, done.stderr
        assert "acme" not in done.stderr

    def test_who_asks_for_it_is_told_which_one_it_is(self, broken):
        done = broken("plan", "--plugins", "periodic,acme")
        assert done.returncode == 2
        assert "The plugin 'acme' (acme) cannot be loaded" in done.stderr
        assert "No module named 'not_there'" in done.stderr

    def test_who_may_go_without_it_goes_on_with_the_others(self, broken):
        done = broken(
            "plan",
            "--plugins",
            "periodic:cost-aware-packing,acme",
            "--allow-missing",
            "acme",
            "--json",
        )
        assert done.returncode == 0, done.stderr
        assert '"cost-aware-packing"' in done.stdout
