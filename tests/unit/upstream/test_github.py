"""How GitHub is asked: conditionally, within its limits, and without a network."""

import pytest

from miles_periodic.hooks import PeriodicError
from miles_periodic.upstream.github import GitHub, LimitReached, NotFound, Unreachable
from miles_periodic.upstream.rows import ledger

ROW = ledger()["miles#3307"]
PATH = "/repos/radixark/miles/issues/3307"
NOW = 1_796_000_000.0
OPEN = {"title": "fix it", "state": "open", "created_at": "2026-09-17T08:00:00Z"}
MERGED = {
    **OPEN,
    "state": "closed",
    "pull_request": {"merged_at": "2026-10-02T09:30:00Z"},
}


@pytest.fixture
def asked(github):
    """`asked(known, **environment)`: the row asked about, with the pauses that were waited for."""
    github.issues[PATH] = OPEN
    pauses = []

    def ask(known=None, **environment):
        environment = {"GITHUB_API_URL": github.url, **environment}
        with GitHub(environment, sleep=pauses.append, clock=lambda: NOW) as client:
            return client.ask(ROW, known)

    ask.pauses = pauses
    return ask


def test_an_open_pull_request_is_open(asked):
    said = asked()
    assert (said.title, said.state, said.opened, said.merged) == (
        "fix it",
        "open",
        "2026-09-17",
        "",
    )
    assert said.seen == "2026-11-30"


def test_a_closed_one_that_was_merged_is_merged(asked, github):
    github.issues[PATH] = MERGED
    assert (asked().state, asked().merged) == ("merged", "2026-10-02")


def test_a_closed_one_that_was_not_is_closed(asked, github):
    github.issues[PATH] = {**MERGED, "pull_request": {"merged_at": None}}
    assert (asked().state, asked().merged) == ("closed", "")


def test_an_issue_has_no_pull_request_and_is_closed(asked, github):
    github.issues[PATH] = {**OPEN, "state": "closed"}
    assert asked().state == "closed"


def test_what_was_asked_before_is_asked_for_changes_only(asked, github):
    first = asked()
    assert asked(first) == first
    assert github.requests[-1][1]["if-none-match"] == first.etag


def test_a_change_since_then_is_heard(asked, github):
    first = asked()
    github.issues[PATH] = MERGED
    assert asked(first).state == "merged"


@pytest.mark.parametrize("variable", ["GITHUB_TOKEN", "GH_TOKEN"])
def test_a_token_of_the_environment_is_sent(asked, github, variable):
    asked(**{variable: "secret"})
    assert github.requests[-1][1]["authorization"] == "Bearer secret"


def test_without_a_token_none_is_sent(asked, github):
    asked()
    assert "authorization" not in github.requests[-1][1]


def test_a_refused_token_is_an_error_that_does_not_show_it(asked, github):
    github.refusals = [(401, {})]
    with pytest.raises(PeriodicError, match="refuses the token") as caught:
        asked(GITHUB_TOKEN="secret")
    assert "secret" not in str(caught.value)


def test_a_short_pause_is_waited_for_once(asked, github):
    github.refusals = [(429, {"Retry-After": "7"})]
    assert asked().state == "open"
    assert asked.pauses == [7.0]


def test_a_limit_that_ends_soon_is_waited_for(asked, github):
    headers = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(NOW) + 30)}
    github.refusals = [(403, headers)]
    assert asked().state == "open"
    assert asked.pauses == [30.0]


def test_a_limit_that_ends_late_stops_the_questions(asked, github):
    headers = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(NOW) + 3000)}
    github.refusals = [(403, headers)]
    with pytest.raises(LimitReached) as caught:
        asked()
    assert caught.value.until == NOW + 3000
    assert (asked.pauses, len(github.requests)) == ([], 1)


def test_a_limit_that_is_still_there_after_the_pause_stops_the_questions(asked, github):
    github.refusals = [(429, {"Retry-After": "7"}), (429, {"Retry-After": "9"})]
    with pytest.raises(LimitReached):
        asked()


def test_a_number_that_github_does_not_know_is_said_to_be_unknown(asked, github):
    github.issues.clear()
    with pytest.raises(NotFound):
        asked()


@pytest.mark.parametrize("status", [403, 500, 502])
def test_a_server_that_cannot_answer_is_as_good_as_none(asked, github, status):
    github.refusals = [(status, {})]
    with pytest.raises(Unreachable, match=str(status)):
        asked()


def test_without_a_server_nobody_answers():
    with GitHub({"GITHUB_API_URL": "http://127.0.0.1:9"}) as client, pytest.raises(Unreachable):
        client.ask(ROW)
