"""Sources found, read and parsed, never imported."""

import importlib
import os
import sys
from pathlib import Path

import pytest

from miles_periodic.compat.tree import Tree
from miles_periodic.hooks import PeriodicError


@pytest.fixture
def tree(tmp_path):
    def made(text, name="loop.py"):
        file = tmp_path / "miles" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return Tree.at("miles", tmp_path)

    return made


def test_a_module_with_a_byte_order_mark_is_read(tree):
    assert tree("\ufeffx = 1\n").module("miles.loop").syntax.body


def test_a_file_that_changed_is_read_again(tree):
    assert tree("def a(): pass\n").find("miles.loop:a")
    assert tree("def b(): pass\n").find("miles.loop:a") is None


def test_what_python_cannot_read_is_an_error_with_its_place(tree):
    with pytest.raises(PeriodicError) as error:
        tree("def broken(:\n").find("miles.loop:broken")
    assert error.value.parts["target"] == "miles/loop.py:1"


def test_code_in_a_tree_is_never_run(tree):
    assert tree("raise SystemExit(1)\ndef a(): pass\n").find("miles.loop:a")


def test_the_last_of_two_definitions_counts(tree):
    text = "if x:\n    def a(one): pass\nelse:\n    def a(two): pass\n"
    _, found = tree(text).find("miles.loop:a")
    assert found.args.args[0].arg == "two"


def test_a_folder_without_the_package_is_refused(tmp_path):
    with pytest.raises(PeriodicError, match="holds no package 'sglang'"):
        Tree.at("sglang", tmp_path)


def test_a_definition_knows_its_dotted_name(tree):
    module = tree("class A:\n    def b(self):\n        return 1\n").module("miles.loop")
    assert module.qualname(module.functions[0].body[0]) == "A.b"


@pytest.mark.parametrize("text", ["x = 1\0\n", "x = " + "(" * 5000 + ")" * 5000])
def test_what_python_chokes_on_is_an_error_with_its_file(tree, text):
    with pytest.raises(PeriodicError) as error:
        tree(text).find("miles.loop:broken")
    assert error.value.parts["target"].startswith("miles/loop.py")


def test_only_files_are_sources(tree, tmp_path):
    made = tree("x = 1\n")
    (tmp_path / "miles" / "folder.py").mkdir()
    (tmp_path / "miles" / ".#loop.py").symlink_to("nobody@nowhere")
    os.mkfifo(tmp_path / "miles" / "pipe.py")
    assert [module.path.name for module in made.containing("x")] == ["loop.py"]


@pytest.mark.parametrize("folder", ["~nobody-of-this-name/x", "/" + "x" * 300, "/etc/passwd"])
def test_a_name_that_can_be_no_folder_is_refused(folder):
    with pytest.raises(PeriodicError, match="holds no package 'sglang'"):
        Tree.at("sglang", Path(folder))


def test_a_package_that_this_process_has_imported_hides_none_that_a_new_one_would_find(
    tmp_path, monkeypatch
):
    for name in ("site", "script"):
        (tmp_path / name / "miles" / "rollout").mkdir(parents=True)
        (tmp_path / name / "miles" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delitem(sys.modules, "miles", raising=False)
    monkeypatch.setitem(sys.modules, "miles", importlib.import_module("miles"))
    found = Tree.installed("miles", tmp_path / "script")
    assert found.portions == (tmp_path / "script" / "miles",)
