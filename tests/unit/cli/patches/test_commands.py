"""`miles patches`: what is listed, and what is refused before anything is looked at."""

import json

import pytest
from typer.testing import CliRunner

from miles_periodic.cli.patches import app
from miles_periodic.cli.patches.gather import chosen, open_checkout
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.patches.headers import headers


def run(*words):
    done = CliRunner().invoke(app, list(words))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_every_patch_set_is_listed_with_what_it_does_or_why_there_is_none():
    listed = " ".join(run("list").output.split())
    for header in headers():
        assert header.name in listed
        assert (header.nothing or header.what).split()[0] in listed
    assert "nothing to patch: SGLang's part is native" in listed


def test_a_listed_change_has_the_state_of_the_ledger():
    assert "miles#1927 (" in " ".join(run("list", "cost-aware-packing").output.split())


def test_the_list_as_json_is_the_headers():
    printed = json.loads(run("list", "cost-aware-packing", "--json").output)
    assert printed["schema"] == 1
    names = [(each["upstream"], each["feature"]) for each in printed["patch_sets"]]
    assert names == [("megatron", "cost-aware-packing"), ("miles", "cost-aware-packing")]


def test_a_feature_that_nobody_knows_is_named_with_the_nearest_one():
    with pytest.raises(PeriodicError, match="cost-aware-packing"):
        chosen(["cost-aware-paking"])


@pytest.mark.parametrize("words", [("check",), ("apply",), ("revert",)])
def test_a_folder_without_any_package_is_refused(tmp_path, words):
    (tmp_path / "ray").mkdir()  # as in site-packages, where it is no part of Miles
    (tmp_path / "ray/__init__.py").touch()
    with pytest.raises(PeriodicError, match="holds not what is to be patched") as caught:
        run(*words, "--checkout", str(tmp_path))
    assert caught.value.parts["found"] == "none of them"


def test_an_upstream_that_is_not_there_or_is_none_is_refused(tmp_path):
    (tmp_path / "miles").mkdir()
    (tmp_path / "miles/a.py").touch()
    assert list(open_checkout(tmp_path, ())[1]) == ["miles"]
    with pytest.raises(PeriodicError, match="holds not what"):
        open_checkout(tmp_path, ["miles", "sglang"])
    with pytest.raises(PeriodicError, match="No upstream is named 'vllm'"):
        open_checkout(tmp_path, ["vllm"])


def test_the_package_itself_is_a_checkout_too(tmp_path):
    (tmp_path / "miles").mkdir()
    (tmp_path / "miles/a.py").touch()
    assert open_checkout(tmp_path / "miles", ())[0].root == tmp_path.resolve()


def test_where_nothing_is_applied_nothing_is_reverted(tmp_path):
    (tmp_path / "miles").mkdir()
    (tmp_path / "miles/a.py").write_text("x = 1\n")
    assert "0 files" in run("revert", "--checkout", str(tmp_path)).output
    assert (tmp_path / "miles/a.py").read_text() == "x = 1\n"
