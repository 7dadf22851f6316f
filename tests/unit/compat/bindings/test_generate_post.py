"""Which calls of Miles's client are `/generate` requests, and where their server is asked."""

import pytest

from miles_periodic.compat.bindings.generate_post import is_generate, model_info_beside


@pytest.mark.parametrize("url", ["http://router:1/generate", "http://router:1/a/generate/?x=1"])
def test_a_body_for_generate_is_a_request(url):
    assert is_generate(url, {"input_ids": [1]})


@pytest.mark.parametrize(
    ("url", "request_body"),
    [
        ("http://router:1/generate", None),
        ("http://router:1/generate", [1]),
        ("http://router:1/abort_request", {"rid": "a"}),
        ("http://router:1/other?path=/generate", {}),
    ],
)
def test_any_other_call_is_none(url, request_body):
    assert not is_generate(url, request_body)


def test_a_server_says_what_it_is_beside_generate():
    assert model_info_beside("http://router:1/a/generate") == "http://router:1/a/model_info"
