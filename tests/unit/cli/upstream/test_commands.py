"""`miles upstream` as a user runs it: against a GitHub on this machine, and without one."""

import importlib.util
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from miles_periodic.cli import upstream
from miles_periodic.hooks import PeriodicError
from miles_periodic.upstream import rows

_FILE = Path(__file__).parents[2] / "upstream" / "github_server.py"
_SPEC = importlib.util.spec_from_file_location("github_server", _FILE)
github_server = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(github_server)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("GITHUB_TOKEN", "GH_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def github(monkeypatch):
    """A GitHub that says of every row what the ledger says."""
    with github_server.running() as fake:
        for row in rows.ledger().values():
            if row.number:
                merged = {"merged_at": f"{row.merged}T00:00:00Z" if row.merged else None}
                if row.state == "merged" and not row.merged:
                    merged = {"merged_at": "2026-01-01T00:00:00Z"}
                fake.issues[path_of(row)] = {
                    "title": row.title,
                    "state": "closed" if row.state == "merged" else row.state,
                    "created_at": "2026-01-01T00:00:00Z",
                    "pull_request": merged,
                }
        monkeypatch.setenv("GITHUB_API_URL", fake.url)
        yield fake


def path_of(row):
    return f"/repos/{rows.REPOSITORIES[row.upstream]}/issues/{row.number}"


def run(*arguments):
    return CliRunner().invoke(upstream.app, arguments)


def test_what_was_merged_since_is_said_and_shown_from_then_on(github):
    row = rows.ledger()["miles#3307"]
    github.issues[path_of(row)] |= {
        "state": "closed",
        "pull_request": {"merged_at": "2026-11-29T00:00:00Z"},
    }
    said = run("refresh").stdout
    assert "miles#3307: merged on 2026-11-29, the ledger says open" in said
    assert "merged, as of" in run("show", "miles#3307").stdout


def test_a_second_time_only_changes_are_asked_for(github):
    run("refresh")
    first = len(github.requests)
    run("refresh")
    assert len(github.requests) == 2 * first
    assert all("if-none-match" in headers for _, headers in github.requests[first:])


def test_without_a_network_it_says_so_and_is_no_error(monkeypatch):
    monkeypatch.setenv("GITHUB_API_URL", "http://127.0.0.1:9")
    result = run("refresh")
    assert result.exit_code == 0
    assert "GitHub cannot be reached" in result.stderr
    assert "0 of " in result.stdout


def test_a_limit_stops_the_questions_and_is_no_error(github):
    headers = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "4000000000"}
    github.refusals = [(403, headers)]
    result = run("refresh")
    assert result.exit_code == 0
    assert "rate limit is reached until" in result.stderr
    assert len(github.requests) == 1


def test_the_ledger_is_written_only_when_asked(github, tmp_path, monkeypatch):
    folder = tmp_path / "ledger"
    shutil.copytree(rows.folder(), folder)
    monkeypatch.setattr("miles_periodic.cli.upstream.refresh.folder", lambda: folder)
    before = (folder / "miles.toml").read_text()
    run("refresh")
    assert (folder / "miles.toml").read_text() == before
    run("refresh", "--write")
    written = rows.tomllib.loads((folder / "miles.toml").read_text())
    assert written["miles#3307"]["opened"] == "2026-01-01"
    for key, part in written.items():
        rows.row_from(key, part)


def test_an_unknown_key_is_refused_with_the_nearest_one():
    result = run("show", "sglang#24852")
    assert isinstance(result.exception, PeriodicError)
    assert "Write 'sglang#24851' instead" in str(result.exception)


def test_an_unknown_feature_is_refused():
    result = run("status", "--feature", "kv-preservatoin")
    assert "Write 'kv-preservation' instead" in str(result.exception)


def test_what_is_on_file_proves_the_ledger():
    result = run("verify", "--on-file")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip().endswith(" 0 disagreements")


def test_a_tree_that_lacks_a_merged_change_disagrees(tmp_path):
    (tmp_path / "miles" / "rollout").mkdir(parents=True)
    (tmp_path / "miles" / "rollout" / "x.py").write_text("")
    result = run("verify", "--on-file", "--tree", f"miles={tmp_path}")
    assert result.exit_code == 1
    assert "miles#2278: miles at" in result.stderr and "has it not" in result.stderr


def test_nothing_of_ours_is_expired_while_a_release_needs_it():
    assert "0 of " in run("expired").stdout
