"""A CPU run stays on this machine."""

from miles_periodic.compat.cpu.environment import cpu_environment


def test_servers_and_trainers_listen_on_loopback_only():
    environment = cpu_environment()
    assert {environment["SGLANG_HOST_IP"], environment["MILES_HOST_IP"]} == {"127.0.0.1"}
    assert environment["GLOO_SOCKET_IFNAME"] == "lo"


def test_nothing_is_downloaded():
    assert cpu_environment()["HF_HUB_OFFLINE"] == "1"


def test_every_variable_is_text():
    assert all(isinstance(value, str) for value in cpu_environment().values())
