"""Patch sets on real releases: put in, taken out, refused on one changed target, exported.

A release is read where it lies; what is written to are copies of the files that are touched, under
git where it matters.
"""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from miles_periodic.cli.patches.apply import apply_command, revert_command
from miles_periodic.cli.patches.export import export_command
from miles_periodic.cli.patches.gather import chosen, look
from miles_periodic.cli.patches.show import check_command
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.patches.checkout import Checkout, git
from miles_periodic.patches.codemod import put_in, sources_of, without_points
from miles_periodic.patches.headers import headers
from miles_periodic.patches.states import Applied, NotApplicable, Ready, state_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RECIPES = tomllib.loads(Path(__file__).with_name("releases.toml").read_text())["release"]
TREES = sorted({(r["distribution"], r["version"], r["python"], r["upstream"]) for r in RECIPES})
WHO = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")


@pytest.fixture(
    scope="module", params=TREES, ids=lambda tree: "-".join((tree[0], tree[1], tree[3]))
)
def release(request, unpacked):
    """Every patch set on one upstream of a release, with its tree's folder."""
    distribution, version, python, upstream = request.param
    folder = unpacked(distribution, version, python)
    place, trees = Checkout(folder.resolve(), False), {upstream: Tree.at(upstream, folder)}
    return f"{distribution}=={version}", upstream, place, list(look(chosen(()), place, trees))


def in_words(looked):
    return {each.header.name: each.state for each in looked}


def test_a_patch_set_is_ready_exactly_on_the_releases_that_it_claims(release):
    name, upstream, _, looked = release
    ready = [each.header.name for each in looked if isinstance(each.state, Ready)]
    claiming = [h.name for h in headers() if h.upstream == upstream and name in h.applies_to]
    assert ready == claiming, in_words(looked)
    others = [each.state for each in looked if each.header.name not in ready]
    assert all(isinstance(state, NotApplicable) for state in others), in_words(looked)


def test_all_that_are_ready_go_in_and_come_out_without_a_trace(release):
    _, _, place, looked = release
    ready = [each for each in looked if isinstance(each.state, Ready)]
    points = [point for each in ready for point in each.points]
    before = sources_of(place.root, points)
    after = before | put_in(points, before)
    for each in ready:
        assert isinstance(state_of(each.points, after), Applied)
    for file, text in after.items():
        assert without_points(text, file) == before[file] != text
        ast.parse(text)


def test_no_module_hands_out_a_target_before_its_end(release):
    """What takes a function while the module is imported has it without any binding."""
    _, _, place, looked = release
    for each in {point.file: point for one in looked for point in one.points}.values():
        module = ast.parse((place.root / each.file).read_bytes())
        functions = {name for name in each.targets if "." not in name}
        assert not functions & set(_loaded_at_import(module)), each


def _loaded_at_import(module):
    """Names that the module's own statements read: bodies of functions run later."""
    waiting = list(module.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += [*getattr(node, "decorator_list", ()), *node.args.defaults]
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        waiting += ast.iter_child_nodes(node)


# One release per upstream for whatever writes.

SMALL = [("miles-rl", "0.0.2", "3.11", "miles"), ("megatron-core", "0.19.2", "3.12", "megatron")]


@pytest.fixture(scope="module", params=SMALL, ids=lambda tree: tree[3])
def copied(request, unpacked, tmp_path_factory):
    """One package under git, as it is in a release."""
    distribution, version, python, upstream = request.param
    folder = tmp_path_factory.mktemp(upstream)
    source = unpacked(distribution, version, python) / upstream
    shutil.copytree(source, folder / upstream, ignore=shutil.ignore_patterns("__pycache__"))
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, *WHO, "commit", "--quiet", "--message", "Base")
    return folder, upstream


@pytest.fixture
def checkout(copied):
    folder, upstream = copied
    yield copied
    git(folder, "reset", "--quiet", "--hard", "HEAD")
    git(folder, "clean", "--quiet", "-fdx")


FEATURE = {"miles": "cost-aware-packing", "megatron": "chunked-checkpoint-staging"}
TARGET = {
    "miles": ("miles/backends/training_utils/data.py", "def get_data_iterator("),
    "megatron": (
        "megatron/core/dist_checkpointing/strategies/filesystem_async.py",
        "def prepare_write_data(",
    ),
}


def status(folder):
    return git(folder, "status", "--porcelain").decode()


def test_applied_and_reverted_git_sees_no_difference(checkout):
    folder, upstream = checkout
    apply_command(folder, [FEATURE[upstream]])
    assert TARGET[upstream][0] in status(folder)
    apply_command(folder, [FEATURE[upstream]])  # again: nothing is put in twice
    revert_command(folder)
    assert status(folder) == ""


#: What becomes of a target's head; a body has one more statement.
DRIFTS = {
    "signature": lambda head: head + "more, ",
    "gone": lambda head: head.replace("def ", "def former_"),
}


def with_drift(text, head, kind):
    assert head in text
    if kind in DRIFTS:
        return text.replace(head, DRIFTS[kind](head), 1)
    indent = text[: text.index(head)].rpartition("\n")[2] + "    "
    at = text.index(f"\n{indent}return", text.index(head))
    return f"{text[:at]}\n{indent}more = 1{text[at:]}"


@pytest.mark.parametrize("kind", [*DRIFTS, "body"])
def test_a_tree_with_one_changed_target_is_refused_untouched(checkout, kind):
    folder, upstream = checkout
    file, head = TARGET[upstream]
    (folder / file).write_text(with_drift((folder / file).read_text(), head, kind))
    git(folder, *WHO, "commit", "--quiet", "--all", "--message", "Drift")
    try:
        with pytest.raises(PeriodicError) as caught:
            apply_command(folder, [FEATURE[upstream]])
        assert status(folder) == ""
        parts = caught.value.parts
        if (kind, upstream) == ("gone", "miles"):  # where no such decision is, none can be taken
            assert "cannot be had here" in parts["found"]
            return
        assert file in caught.value.problem and "nothing was written" in caught.value.problem
        assert parts["target"].startswith(file.removesuffix(".py").replace("/", "."))
        assert parts["expected"] and parts["found"] and parts["remedy"].startswith("Use a tree")
    finally:
        git(folder, "reset", "--quiet", "--hard", "HEAD~1")


def test_a_file_that_is_no_python_is_a_conflict_of_what_reads_it_alone(checkout, capsys):
    folder, upstream = checkout
    file = TARGET[upstream][0]
    (folder / file).write_text("def f(:\n")
    with pytest.raises(typer.Exit) as caught:
        check_command(folder, [FEATURE[upstream], "fused-linear-cross-entropy"], json_output=True)
    assert caught.value.exit_code == 1
    sets = json.loads(capsys.readouterr().out)["patch_sets"]
    states = {each["feature"]: each["state"] for each in sets}
    assert states == {FEATURE[upstream]: "in conflict", "fused-linear-cross-entropy": "not applied"}
    (broken,) = [each for each in sets if each["feature"] == FEATURE[upstream]]
    assert file in broken["file"] and broken["remedy"].startswith("Repair the tree")


def test_a_file_with_changes_that_are_not_committed_is_refused_untouched(checkout):
    folder, upstream = checkout
    file = TARGET[upstream][0]
    with (folder / file).open("a") as opened:
        opened.write("# mine\n")
    before = status(folder)
    with pytest.raises(PeriodicError, match="Commit or stash them") as caught:
        apply_command(folder, [FEATURE[upstream]])
    assert caught.value.parts["target"] == file
    assert status(folder) == before


def test_what_is_exported_is_taken_by_git_am_and_is_what_apply_writes(checkout, tmp_path):
    folder, upstream = checkout
    export_command(folder, tmp_path / "out")
    assert status(folder) == ""
    apply_command(folder)
    written = {path: (folder / path).read_bytes() for path in touched(folder)}
    git(folder, "reset", "--quiet", "--hard", "HEAD")
    base = git(folder, "rev-parse", "HEAD").decode().strip()
    try:
        patches = sorted(map(str, (tmp_path / "out/git").glob("*.patch")))
        git(folder, *WHO, "am", "--quiet", *patches)
        assert {path: (folder / path).read_bytes() for path in written} == written
        apply_command(folder)  # all of it is there, as the command sees it
        assert status(folder) == ""
        revert_command(folder)
        assert git(folder, "diff", "--name-only", base).decode() == ""
    finally:
        git(folder, "reset", "--quiet", "--hard", base)


def test_the_quilt_series_applies_by_patch_without_fuzz(checkout, tmp_path):
    folder, upstream = checkout
    export_command(folder, tmp_path / "out")
    for name in (tmp_path / "out/quilt/series").read_text().split():
        words = ["patch", "-p1", "--fuzz=0", "-i", str(tmp_path / "out/quilt" / name)]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout
    revert_command(folder)
    assert status(folder) == ""


def touched(folder):
    return git(folder, "diff", "--name-only").decode().splitlines()


def test_a_feature_that_patches_nothing_there_is_named_with_the_reason(unpacked):
    folder = unpacked("megatron-core", "0.19.2", "3.12")
    with pytest.raises(PeriodicError, match="cost-aware-packing patches nothing in") as caught:
        apply_command(folder, ["cost-aware-packing"])
    assert "megatron: native" in caught.value.parts["found"]
