"""What can be deleted: a binding that no release in range needs, and the file that held it."""

import pytest

from miles_periodic.cli.upstream.expired import expired
from miles_periodic.compat.catalog import BINDINGS
from miles_periodic.compat.matrix.facts import Facts
from miles_periodic.upstream.rows import ledger, row_from

NAME = "server/align-mixed-batches"
KEY = "sglang/aligned-routes"


def facts(label, **claims):
    return Facts(label, {"sglang": {}}, {KEY: claims["there"]})


def names(*matrix, rows=None):
    return [each.binding for each in expired(matrix, rows or ledger())]


def test_a_binding_whose_replacement_is_in_every_release_is_expired():
    (found,) = expired([facts("a", there=True), facts("b", there=True)], ledger())
    assert (found.binding, found.keys) == (NAME, (KEY,))
    assert found.adapter == BINDINGS[NAME].adapter


def test_one_release_that_needs_it_keeps_it():
    assert names(facts("a", there=False), facts("b", there=True)) == []


def test_a_release_of_another_upstream_has_no_say():
    other = Facts("m", {"megatron": {}}, {})
    assert names(facts("a", there=True), other) == [NAME]


def test_without_any_release_of_its_upstream_nothing_is_expired():
    assert names(Facts("m", {"megatron": {}}, {})) == []


def test_two_changes_that_cover_the_releases_together_expire_a_binding():
    part = {
        "title": "t",
        "state": "open",
        "last-update": "2026-11-30",
        "description": "d",
        "probe": [{"defines": "sglang.x:f"}],
        "probe-from": "its description",
        "replaces": [NAME],
    }
    two = {key: row_from(key, part) for key in ("sglang#1", "sglang#2")}
    matrix = [Facts(k, {"sglang": {}}, {each: each == k for each in two}) for k in two]
    (found,) = expired(matrix, two)
    assert found.keys == ("sglang#1", "sglang#2")


@pytest.mark.parametrize(("others", "files"), [(False, True), (True, False)])
def test_a_file_goes_only_when_every_adapter_in_it_does(others, files):
    names_of_file = [n for n, b in BINDINGS.items() if ".server_wire:" in b.adapter]
    gone = names_of_file[:1] if others else names_of_file
    part = {
        "title": "t",
        "state": "open",
        "last-update": "2026-11-30",
        "description": "d",
        "probe": [{"defines": "sglang.x:f"}],
        "probe-from": "its description",
        "replaces": gone,
    }
    matrix = [Facts("a", {"sglang": {}}, {"sglang#1": True})]
    found = list(expired(matrix, {"sglang#1": row_from("sglang#1", part)}))
    assert [each.binding for each in found] == gone
    assert all(bool(each.files) is files for each in found)
