"""Requests and responses by their bytes: what cannot be read is routed as before."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_periodic.compat.bindings.router_wire import answer_of, routed_request


def read(fields, path="generate", method="POST"):
    return routed_request(method, path, json.dumps(fields).encode())


def test_a_request_has_its_tokens_and_the_path_that_it_came_by():
    request = read({"input_ids": [1, 2, 3]}, "v1/chat/completions")
    assert (list(request.tokens), request.path) == ([1, 2, 3], "/v1/chat/completions")


@pytest.mark.parametrize("field", ["extra_key", "cache_salt", "lora_path"])
def test_what_keeps_its_kv_apart_is_its_salt(field):
    salts = {read({field: value}).salt for value in ("one", "two", None, ["one"])}
    assert len(salts) == 4


def test_two_salts_in_other_fields_are_two():
    assert read({"extra_key": "a"}).salt != read({"cache_salt": "a"}).salt


def test_requests_are_numbered_apart():
    assert read({}).number != read({}).number


@pytest.mark.parametrize("tokens", [None, "text", [1.5], ["a"], [1 << 70], 3, [[]], [[1], "a"]])
def test_tokens_that_are_none_are_left_out(tokens):
    assert list(read({"input_ids": tokens}).tokens) in ([], [1])


def test_of_a_batch_the_first_prompt_counts():
    assert list(read({"input_ids": [[4, 5], [6]]}).tokens) == [4, 5]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "generate", b"{}"),
        ("POST", "flush_cache", b"{}"),
        ("POST", "generate", b"no json"),
        ("POST", "generate", b"[1]"),
        ("POST", "generate", b""),
        ("POST", "generate", b"\xff{"),
        ("POST", "generate", b"[" * 100_000),
    ],
)
def test_what_does_not_generate_or_is_no_request_is_left_to_the_router(method, path, body):
    assert routed_request(method, path, body) is None


@given(st.binary(max_size=40))
def test_no_body_breaks_the_reading(body):
    routed_request("POST", "generate", body)


def test_an_answer_has_the_counts_of_the_response():
    body = json.dumps({"meta_info": {"prompt_tokens": 9, "cached_tokens": 8}}).encode()
    answer = answer_of("url", {"response_body": body, "status_code": 200})
    assert (answer.prompt_tokens, answer.cached_tokens, answer.completion_tokens) == (9, 8, None)
