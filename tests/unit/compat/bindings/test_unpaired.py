"""A decode server refuses what would end it; other servers take it."""

from types import SimpleNamespace

import pytest

from miles_periodic.compat.bindings.unpaired import refuse


def call(mode, bootstrap_host):
    def create(obj, input_text="", input_ids=()):
        return "tokenized"

    manager = SimpleNamespace(server_args=SimpleNamespace(disaggregation_mode=mode))
    return refuse(create, manager, (SimpleNamespace(bootstrap_host=bootstrap_host),), {})


def test_a_decode_server_refuses_a_request_that_names_no_prefill_server():
    with pytest.raises(ValueError, match="set bootstrap_host"):
        call("decode", None)


@pytest.mark.parametrize(
    ("mode", "host"), [("decode", "10.0.0.1"), ("null", None), ("prefill", None)]
)
def test_every_other_request_goes_on(mode, host):
    assert call(mode, host) == "tokenized"
