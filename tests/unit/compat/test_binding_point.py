"""A patched module: it puts its bindings in by itself, once, and as an import hook would."""

import ast
import os
import subprocess
import sys
import textwrap
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_periodic.compat.binding import Binding
from miles_periodic.compat.manifest import RunManifest
from miles_periodic.compat.roll_call.server import RollCallServer
from miles_periodic.hooks.binding_points import marked_in, names_at, point, points_in

SOURCE = "def increment(x):\n    return x + 1\n\n\nBEFORE = increment\n"
DOUBLE, TRIPLE = (
    Binding(f"toy/{name}", "miles", "toy_upstream:increment", f"toy_adapter:{name}", ("process",))
    for name in ("double", "triple")
)
ADAPTERS = """
def double(wrapped, instance, args, kwargs):
    return 2 * wrapped(*args, **kwargs)

def triple(wrapped, instance, args, kwargs):
    return 100 + 3 * wrapped(*args, **kwargs)
"""
SHOW = "import toy_upstream as t; print(t.increment(1), t.BEFORE(1))"
#: Whether an import hook of ours is there; wrapt's import hooks are one finder.
HOOKS = "import sys; print([f for f in sys.meta_path if 'ImportHookFinder' in repr(type(f))] == [])"


@pytest.fixture
def toy(tmp_path):
    (tmp_path / "toy_adapter.py").write_text(ADAPTERS)

    def write(*points):
        (tmp_path / "toy_upstream.py").write_text(SOURCE + "".join(points))
        return tmp_path

    return write


@pytest.fixture
def roll_call():
    with RollCallServer([DOUBLE, TRIPLE], run_id="run") as server:
        yield server


def run(folder, roll_call, code, *, bindings=(DOUBLE, TRIPLE), in_sources=(), words=()):
    manifest = RunManifest(
        "run", roll_call.address, roll_call.token, (), tuple(bindings), tuple(in_sources)
    )
    variables = {**os.environ, **manifest.environment(), "PYTHONPATH": paths(folder)}
    command = [sys.executable, *words, "-c", textwrap.dedent(code)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=variables, **pipes) as child:
        output, errors = child.communicate(timeout=120)
    roll_call.hear_out(child.pid)
    return subprocess.CompletedProcess(command, child.returncode, output, errors)


def paths(folder):
    return os.pathsep.join([str(folder), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])


BOTH = point("first", ["toy/double", "toy/triple"])
#: 2 doubled, then tripled: the catalog's order.
INJECTED = "112 2\n"


def test_without_a_point_the_import_hook_puts_bindings_in_order(toy, roll_call):
    assert run(toy(), roll_call, SHOW).stdout == INJECTED
    assert roll_call.roll.rows()[0]["in_sources"] == []


def test_a_patched_module_does_what_an_import_hook_does(toy, roll_call):
    done = run(toy(BOTH), roll_call, SHOW, in_sources=("toy/double", "toy/triple"))
    assert done.stdout == INJECTED, done.stderr
    (row,) = roll_call.roll.rows()
    assert row["applied"] == ["toy/double", "toy/triple"]
    assert row["in_sources"] == ["toy/double", "toy/triple"]
    assert row["consulted"] == {"toy/double": 1, "toy/triple": 1}


def test_with_all_in_the_sources_there_is_no_import_hook(toy, roll_call):
    both = ("toy/double", "toy/triple")
    assert run(toy(BOTH), roll_call, HOOKS, in_sources=both).stdout == "True\n"
    assert run(toy(BOTH), roll_call, HOOKS).stdout == "False\n"


def test_a_point_that_the_launcher_did_not_see_binds_nothing_twice(toy, roll_call):
    assert run(toy(BOTH), roll_call, SHOW).stdout == INJECTED
    assert roll_call.roll.rows()[0]["in_sources"] == ["toy/double", "toy/triple"]


@pytest.mark.parametrize("patched", ["double", "triple"])
def test_with_one_of_two_in_the_sources_the_order_stays(toy, roll_call, patched):
    folder = toy(point("first", [f"toy/{patched}"]))
    done = run(folder, roll_call, SHOW, in_sources=(f"toy/{patched}",))
    assert done.stdout == INJECTED, done.stderr
    (row,) = roll_call.roll.rows()
    assert row["applied"] == ["toy/double", "toy/triple"]
    assert row["in_sources"] == [f"toy/{patched}"]


def test_points_of_two_features_name_what_each_has(toy, roll_call):
    folder = toy(point("first", ["toy/triple"]), point("second", ["toy/double", "toy/triple"]))
    assert run(folder, roll_call, SHOW).stdout == INJECTED
    assert roll_call.roll.rows()[0]["in_sources"] == ["toy/double", "toy/triple"]


def test_a_binding_that_the_run_does_not_have_is_not_put_in(toy, roll_call):
    done = run(toy(BOTH), roll_call, SHOW, bindings=(DOUBLE,))
    assert done.stdout == "4 2\n", done.stderr
    assert roll_call.roll.rows()[0]["applied"] == ["toy/double"]


def test_without_a_run_a_patched_module_imports_nothing_of_ours(toy):
    code = f"{SHOW}; import sys; print([m for m in sys.modules if m.startswith('miles_periodic')])"
    variables = {**os.environ, "PYTHONPATH": str(toy(BOTH))}
    variables.pop("MILES_PERIODIC", None)
    done = subprocess.run([sys.executable, "-S", "-c", code], env=variables, capture_output=True)
    assert done.stdout == b"2 2\n[]\n", done.stderr


def test_a_process_that_read_no_boot_line_joins_at_its_first_point(toy, roll_call, tmp_path):
    ours = tmp_path / "ours" / "miles_periodic"
    ours.mkdir(parents=True)
    for room in ("compat", "hooks"):
        (ours / room).symlink_to(Path(import_module(f"miles_periodic.{room}").__file__).parent)
    site = [path for path in sys.path if path.endswith("site-packages")]
    code = f"import sys; sys.path += {[str(ours.parent), *site]!r}\n{SHOW}"
    done = run(toy(BOTH), roll_call, code, in_sources=("toy/double", "toy/triple"), words=["-S"])
    assert done.stdout == INJECTED, done.stderr
    assert roll_call.roll.rows()[0]["in_sources"] == ["toy/double", "toy/triple"]


def test_a_process_whose_sources_lack_the_point_that_was_planned_stops(toy, roll_call):
    done = run(
        toy(),
        roll_call,
        f"import time\n{SHOW}\ntime.sleep(100)",
        bindings=(DOUBLE,),
        in_sources=("toy/double",),
    )
    assert done.returncode == 70
    (failure,) = roll_call.roll.failures
    assert "in the sources on the launcher's node and not in those of this one" in failure.reason


def test_a_target_that_is_gone_from_a_patched_module_ends_the_process(toy, roll_call):
    folder = toy(point("first", ["toy/double"]).replace("\n\n# >>>", "\ndel increment\n# >>>"))
    assert run(folder, roll_call, "import toy_upstream").returncode == 70
    assert "a function increment" in roll_call.roll.failures[0].reason


def test_a_module_that_runs_as_the_main_program_is_left_alone(toy, roll_call):
    folder = toy(BOTH)
    done = run(folder, roll_call, "import runpy; runpy.run_module('toy_upstream', {}, '__main__')")
    assert (done.returncode, roll_call.roll.rows()) == (0, []), done.stderr


SLUGS = st.from_regex(r"[a-z0-9]+(-[a-z0-9]+)*", fullmatch=True)
NAMES = st.lists(st.from_regex(r"[a-z]+/[a-z-]+", fullmatch=True), min_size=1, max_size=4)


@settings(max_examples=30)
@given(SLUGS, NAMES, st.booleans())
def test_a_point_is_python_and_is_read_as_it_was_written(slug, names, unfinished):
    written = point(slug, names, unfinished=unfinished)
    ast.parse(written)
    text = "x = 1" + ("" if unfinished else "\n") + written
    assert points_in(text) == {slug: written}
    assert points_in(text.replace("\n", "\r\n")) == {slug: written}
    assert names_at(written) == tuple(names)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"toy/double",\n', '"toy/double", \n'),
        ("# <<< miles-periodic: first\n", ""),
        ("fromlist", "from_list"),
        ("__name__", "'other'"),
    ],
)
def test_a_point_that_somebody_changed_is_none_and_is_still_seen(old, new):
    text = SOURCE + BOTH.replace(old, new)
    assert points_in(text) == {}
    assert marked_in(text) == {"first"}
