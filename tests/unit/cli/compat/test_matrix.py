"""`miles compat matrix`: what is shown, written and compared, on wheels of a few lines."""

import json

import pytest
import typer
from typer.testing import CliRunner

from miles_periodic.cli import compat
from miles_periodic.cli.compat import page as page_module
from miles_periodic.cli.compat.tables import tables
from miles_periodic.compat.matrix import facts as facts_module
from miles_periodic.compat.matrix import releases
from miles_periodic.compat.matrix.facts import Fact, Facts, recorded
from miles_periodic.hooks import PeriodicError

SERVER = "sglang/srt/managers/io_struct.py"
FLAG = "class GenerateReqInput:\n    return_routed_experts: bool = False\n"
ONE, TWO = "sglang==90.1", "sglang==90.2"


@pytest.fixture
def have(tmp_path, monkeypatch):
    """`have(version, {path: text})`: a release of SGLang that was downloaded before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    def put(version, sources):
        for path, text in sources.items():
            file = tmp_path / "cache/miles-periodic/trees" / f"sglang-{version}" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    return put


@pytest.fixture
def matrix(have, tmp_path, monkeypatch):
    """A matrix of two releases of SGLang, one of which has one change of the ledger."""
    file = tmp_path / "releases.toml"
    file.write_text(
        '[sglang]\nupstreams = ["sglang"]\npython = "3.11"\nreleases = [\n  "90.1",\n  "90.2",\n]\n'
    )
    monkeypatch.setattr(releases, "_FILE", file)
    monkeypatch.setattr(facts_module, "_folder", lambda: tmp_path / "facts")
    have("90.1", {SERVER: "class GenerateReqInput:\n    text: str = ''\n"})
    have("90.2", {SERVER: FLAG})
    return tmp_path


@pytest.fixture
def run():
    def command(*arguments):
        return CliRunner().invoke(compat.app, arguments, catch_exceptions=True)

    return command


def test_every_release_is_planned_and_its_claims_judged(matrix, run):
    result = run("matrix", "--json")
    values = json.loads(result.stdout)
    assert values["schema"] == 1
    assert [each["label"] for each in values["releases"]] == ["sglang-90.1", "sglang-90.2"]
    assert [each["claims"]["sglang#12162"] for each in values["releases"]] == [False, True]
    assert values["releases"][0]["decisions"]["sglang"]["kv-preservation"]["decision"]


def test_a_written_matrix_agrees_with_itself_and_a_change_of_the_sources_is_found(matrix, run):
    assert run("matrix", "--write").exit_code == 0
    assert run("matrix", "--check").exit_code == 0
    source = matrix / "cache/miles-periodic/trees/sglang-90.1" / SERVER
    source.write_text(FLAG)
    result = run("matrix", "--check")
    assert result.exit_code == 1
    assert "sglang#12162 was not there, is there" in result.stderr


def test_one_release_can_be_chosen_and_a_tree_stands_beside_it(matrix, run):
    fork = matrix / "fork" / "sglang" / "srt"
    fork.mkdir(parents=True)
    (fork / "x.py").write_text("")
    result = run("matrix", "--release", ONE, "--tree", f"sglang={matrix / 'fork'}")
    assert "90.1" in result.stdout and "sglang (tree)" in result.stdout
    assert "90.2" not in result.stdout


def test_what_is_on_file_is_shown_without_sources(matrix, run, monkeypatch):
    run("matrix", "--write")
    monkeypatch.setenv("XDG_CACHE_HOME", str(matrix / "empty"))
    assert "90.2" in run("matrix", "--on-file").stdout


def test_a_page_is_written_where_it_was_asked_for(matrix, run):
    run("matrix", "--markdown", str(matrix / "page.md"))
    assert "| sglang-90.1 | " in (matrix / "page.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--on-file",), "Nothing is on file of sglang==90.1"),
        (("--on-file", "--check"), "--on-file looks at no sources"),
        (("--write", "--tree", "sglang=x"), "Only releases are on file"),
        (("--release", "sglang==1.0"), "sglang==1.0 is not in the matrix"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_reason(matrix, run, arguments, words):
    result = run("matrix", *arguments)
    assert isinstance(result.exception, PeriodicError) and words in str(result.exception)


def test_without_a_network_a_release_that_is_not_there_is_a_clear_error(matrix, run, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(matrix / "empty"))
    result = run("matrix", "--release", ONE)
    assert isinstance(result.exception, PeriodicError)
    assert "sglang==90.1 could not be downloaded" in str(result.exception)


def test_a_release_is_added_with_what_changed_and_is_on_file_then(matrix, have, run):
    tokenizer = "sglang/srt/managers/tokenizer_manager.py"
    method = "class TokenizerManager:\n    def _create_tokenized_object(self, obj{}):\n        {}\n"
    have("90.3", {SERVER: FLAG, tokenizer: method.format("", "return Old(obj)")})
    have("90.4", {tokenizer: method.format(", ids", "return New(obj, ids)")})
    assert run("add", "sglang==90.3").exit_code == 0
    said = run("add", "sglang==90.4").stdout
    assert "TokenizerManager._create_tokenized_object: another signature, an unknown shape" in said
    assert "new parameter: ids" in said and "new call: New" in said
    assert "+        return New(obj, ids)".replace("        ", "    ") in said
    assert "sglang#12162 is no longer in this release" in said
    assert [each.version for each in releases.known_releases()][-2:] == ["90.3", "90.4"]
    assert recorded("sglang-90.4").claims["sglang#12162"] is False


def test_a_dry_run_adds_nothing(matrix, have, run):
    have("90.3", {SERVER: FLAG})
    assert run("add", "sglang==90.3", "--dry-run").exit_code == 0
    assert recorded("sglang-90.3") is None
    assert releases.known_releases()[-1].version == "90.2"


def test_a_release_older_than_all_is_not_added_by_command(matrix, run):
    result = run("add", "sglang==1.0")
    assert "older than every release of the matrix" in str(result.exception)


def test_neighbouring_releases_with_one_fact_share_a_line_of_the_page():
    native, gone = Fact("native", "has_it"), Fact("unsupported", "lacks it")
    matrix = [
        Facts(label, {"sglang": {"some-feature": fact}}, {})
        for label, fact in (
            ("sglang-0.5.9", gone),
            ("sglang-0.5.11", native),
            ("sglang-0.5.12", native),
            ("miles-rl-0.0.2", native),
        )
    ]
    text = page_module.page(matrix)
    assert "- sglang-0.5.9: unsupported, as lacks it." in text
    assert "- sglang-0.5.11 to sglang-0.5.12: native, as has\\_it." in text
    assert "- miles-rl-0.0.2: native, as has\\_it." in text


def test_a_binding_that_no_test_calls_makes_its_cell_planned_and_is_named(monkeypatch):
    monkeypatch.setattr(page_module, "planned_only", lambda names: tuple(sorted(names))[:1])
    injected = Fact("inject", "lacks it", ("server/two", "server/one"))
    text = page_module.page([Facts("sglang-90.1", {"sglang": {"some-feature": injected}}, {})])
    assert "| sglang-90.1 | inject, planned |" in text
    assert "- Planned, with no test on file that calls it: `server/one` on sglang-90.1." in text


@pytest.mark.parametrize(
    ("num_releases", "num_features", "first"), [(3, 2, "release"), (2, 3, "feature")]
)
def test_what_is_more_of_goes_down(num_releases, num_features, first):
    by_slug = {f"feature-{n}": Fact("native", "has it") for n in range(num_features)}
    matrix = [Facts(f"sglang-90.{n}", {"sglang": by_slug}, {}) for n in range(num_releases)]
    (table,) = tables(matrix)
    assert table.columns[0].header == first
    assert (table.row_count, len(table.columns)) == (3, 3)


def test_the_commands_are_two():
    commands = typer.main.get_command(compat.app).commands
    assert sorted(commands) == ["add", "matrix"]
