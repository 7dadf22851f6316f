"""The token file."""

import os

import pytest

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.agent.tokens import Tokens, add_job, read_token


def test_a_job_is_known_by_its_token_and_by_nothing_else(tmp_path):
    one, two = (add_job(tmp_path / "tokens", job) for job in ("one", "two"))
    tokens = Tokens(tmp_path / "tokens")
    assert [tokens.job_of(t) for t in (one, two, "", one[:-1], one + "x")] == [
        "one", "two", None, None, None,
    ]  # fmt: skip


def test_a_job_that_is_added_is_known_without_a_restart(tmp_path):
    tokens = Tokens(tmp_path / "tokens")
    tokens.ensure()
    assert tokens.job_of(read_token(tmp_path / "tokens")) == "default"
    assert tokens.job_of(add_job(tmp_path / "tokens", "late")) == "late"


def test_a_new_token_ends_the_old_one(tmp_path):
    tokens, old = Tokens(tmp_path / "tokens"), add_job(tmp_path / "tokens", "job")
    assert tokens.job_of(old) == "job"
    add_job(tmp_path / "tokens", "job")
    assert tokens.job_of(old) is None


def test_a_token_that_could_be_guessed_is_not_taken(tmp_path):
    (tmp_path / "tokens").write_text("job short\n")
    assert Tokens(tmp_path / "tokens").job_of("short") is None


def test_a_token_file_is_its_owners_alone(tmp_path):
    add_job(tmp_path / "tokens", "job")
    assert os.stat(tmp_path / "tokens").st_mode & 0o777 == 0o600


def test_a_token_of_several_is_asked_for_by_its_job(tmp_path):
    add_job(tmp_path / "tokens", "one")
    two = add_job(tmp_path / "tokens", "two")
    assert read_token(tmp_path / "tokens", "two") == two
    with pytest.raises(PeriodicError, match="2 tokens"):
        read_token(tmp_path / "tokens")


@pytest.mark.parametrize("job", ["", "two words", "line\nbreak"])
def test_a_name_that_would_break_the_file_is_refused(tmp_path, job):
    with pytest.raises(PeriodicError, match="no name for a job"):
        add_job(tmp_path / "tokens", job)
